"""Names of the environment variables by which the parts of a run tell each other something."""

from __future__ import annotations

# The port on which rank 0 listens, chosen by the launcher.
MASTER_PORT = "HARNESS_MASTER_PORT"
# How many cores the scheduler says that this node has; virtual nodes have fewer.
CORES_DECLARED = "HARNESS_CORES_DECLARED"
# Set by a launcher that restarts a failed run itself and needs no new job for it.
RESTARTS_HERE = "HARNESS_RESTARTS_HERE"
# Set by the batch script: its start, in unix seconds.
JOB_STARTED = "HARNESS_JOB_STARTED"
# Shell lines that set again, in a container, what the harness sets.
CONTAINER_ENVIRONMENT = "HARNESS_ENVIRONMENT"
# What torchrun sets for a rank, which every framework's launcher understands.
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# Each rank has its own, so that cluster.env cannot set them for all.
OF_A_RANK = (*TORCHRUN, "CUDA_VISIBLE_DEVICES", "PYTHONPATH")
