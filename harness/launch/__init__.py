"""Launching a plan: `local.py` on this machine, `slurm.py` through Slurm. The only rooms that know submitit."""
