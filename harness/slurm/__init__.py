"""The Slurm client, the cluster's inventory and energy accounting."""
