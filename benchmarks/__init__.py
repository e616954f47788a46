"""What this program itself costs. `python -m benchmarks` runs everything and writes `RESULTS.md`."""
