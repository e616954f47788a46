"""What carries gradients, and how: the half of tests that runs in the PyTorch environment."""

from __future__ import annotations

from typing import Any, Dict

from builders import make_spec

from harness.spec import ClusterSpec


def horovod_names() -> Dict[str, str]:
    """What a run says of Horovod: of the one in this environment, and of one built with NCCL."""
    import horovod.torch as hvd

    from harness.worker import horovod

    found = {}
    for device in ("cpu", "cuda"):
        for controller in ("gloo", "mpi"):
            spec = make_spec(strategy="horovod", strategy_options={"controller": controller}, cluster=_cluster(device))
            found[f"{device} {controller} here"] = horovod.name(hvd, spec)
            found[f"{device} {controller} nccl"] = horovod.carriers(spec, nccl=True)
    return {**found, "built": str(bool(hvd.nccl_built()))}


def _cluster(device: str) -> ClusterSpec:
    return ClusterSpec(name="local", device=device, cpus_per_gpu=1)


def carriers() -> Dict[str, Any]:
    """(backend, what is said of it) by device and whether ranks share a GPU."""
    from harness.worker.pytorch.strategies.base import carrier

    return {f"{device} {shared}": carrier(device, shared) for device in ("cpu", "cuda") for shared in (False, True)}
