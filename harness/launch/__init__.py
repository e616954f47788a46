"""Launches a plan: `local.py` on this machine, `slurm.py` through Slurm. Only these modules know submitit."""
