"""Checks a machine with one GPU in eight minutes: are the worker's results correct, and is it fast?

    python -m benchmarks gpu_check --out FILE --budget 480

`command.py` gives each section of `sections.py` a process and a share of the budget, and rewrites FILE after each.
docs/gpu.md explains how to run it on a node and what each line means.
"""
