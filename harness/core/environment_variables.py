"""Names of the environment variables through which the parts of a run communicate."""

from __future__ import annotations

# Port on which rank 0 listens, chosen by the launcher.
MASTER_PORT = "HARNESS_MASTER_PORT"
# Cores that the scheduler assumes on this node; a virtual node has fewer.
CORES_DECLARED = "HARNESS_CORES_DECLARED"
# Process id of the command that started a run on this machine.
COMMAND = "HARNESS_COMMAND"
# Set by a launcher that restarts failed runs itself, without a new job.
RESTARTS_HERE = "HARNESS_RESTARTS_HERE"
# Start of the batch script in unix seconds.
JOB_STARTED = "HARNESS_JOB_STARTED"
# Names of the user's variables that are in the job's environment only, since they look secret.
SECRET_VARIABLES = "HARNESS_SECRET_VARIABLES"
# Shell lines that restore the harness's variables inside a container.
CONTAINER_ENVIRONMENT = "HARNESS_ENVIRONMENT"
# Variables that torchrun sets, understood by every framework's launcher.
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# Differ between ranks, so cluster.env may not set them.
OF_A_RANK = (*TORCHRUN, "CUDA_VISIBLE_DEVICES", "PYTHONPATH")
