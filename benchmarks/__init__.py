"""Benchmarks of this program's own cost. `python -m benchmarks` runs all of them and updates `RESULTS.md`."""
