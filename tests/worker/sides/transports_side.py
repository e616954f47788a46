"""PyTorch half: what carries gradients, and how."""

from __future__ import annotations

from typing import Any, Dict, List

from builders import make_spec

from harness.core.spec import ClusterSpec


def horovod_names() -> Dict[str, str]:
    """Return how a run describes Horovod: the one in this environment, and one built with NCCL."""
    import horovod.torch as hvd

    from harness.worker.distributed import horovod

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
    """Return (backend, description) by device and shared GPUs."""
    from harness.worker.pytorch.strategies.base import carrier

    return {f"{device} {shared}": carrier(device, shared) for device in ("cpu", "cuda") for shared in (False, True)}


def through_host(device: str) -> Dict[str, Any]:
    """Double numbers in host memory, in tensors of several kinds and twice each; return them and the buffers."""
    import numpy as np
    import torch

    from harness.worker.pytorch.strategies.mpi import ThroughHost

    def double(numbers: np.ndarray) -> None:
        rows.append(numbers.ctypes.data)
        numbers *= 2

    through, right = ThroughHost(torch.device(device)), []
    rows: List[int] = []
    for shape in ((5,), (2, 3, 4, 4)):
        for dtype in (torch.float32, torch.float64):
            for layout in (torch.contiguous_format, torch.channels_last)[: 1 + (len(shape) == 4)]:
                tensor = torch.randn(shape, dtype=dtype, device=device).contiguous(memory_format=layout)
                wanted = 4 * tensor
                for _ in range(2):
                    through(tensor, double)
                right.append(bool(torch.equal(tensor, wanted)) and tensor.is_contiguous(memory_format=layout))
    pinned = [buffer.is_pinned() for buffer in through.buffers.values()]
    return {"right": right, "calls": len(rows), "buffers": len(set(rows)), "pinned": pinned}


def has_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())
