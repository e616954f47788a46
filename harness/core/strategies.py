"""What is true of each strategy."""

from __future__ import annotations

# On GPUs. The other strategies carry everything through the memory of hosts, or by MPI.
OVER_NCCL: dict[str, tuple[str, ...]] = {
    "pytorch": (
        *("allreduce", "hierarchical", "hybrid", "zero1", "fsdp", "local_sgd", "pipeline", "tensor", "horovod"),
    ),
    "tensorflow": ("allreduce", "horovod"),
    "keras": ("allreduce", "horovod"),
    "mxnet": ("horovod",),
    "jax": ("allreduce",),
}
