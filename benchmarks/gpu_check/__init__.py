"""Proves a machine with one GPU in eight minutes: is what the worker computes there right, and is it fast?

    python -m benchmarks gpu_check --out FILE --budget 480

`command.py` gives each section of `sections.py` a process and a share of the budget, and rewrites FILE after each.
docs/doctor.md says how to run it on a node and what each line means.
"""
