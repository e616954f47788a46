"""The Slurm cluster, for programs on several nodes."""

from slurm_cluster import able_to_run_slurm, shared_slurm, slurm

__all__ = ["able_to_run_slurm", "shared_slurm", "slurm"]
