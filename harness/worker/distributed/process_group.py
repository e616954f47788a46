"""The process group of torch.distributed: of PyTorch, and of framework=emulated over gloo."""

from __future__ import annotations

import datetime
from typing import List

import torch.distributed as dist

from harness.core.rendezvous import Rendezvous
from harness.core.spec import Site


def init_process_group(backend: str, site: Site, rendezvous: Rendezvous) -> int:
    """Waits for all ranks, at most the site's timeout. Returns the world size as torch.distributed sees it.

    backend: "gloo" or "nccl".
    """
    dist.init_process_group(
        backend,
        init_method=f"tcp://{rendezvous.master_address}:{rendezvous.master_port}",
        rank=rendezvous.rank,
        world_size=rendezvous.world_size,
        timeout=datetime.timedelta(seconds=site.timeout_seconds),
    )
    return dist.get_world_size()


# What has been left, to the end of the process.
_left: List[dist.ProcessGroup] = []


def destroy_process_group() -> None:
    """Leaves the other ranks. CUDA graphs that hold a collective have to be released first: NCCL waits for
    them. The group itself is kept: the last to let go of it would else be the reducer of
    DistributedDataParallel, which waits for gloo's threads without giving up Python's lock, and a thread that has a
    message to free waits for the lock (github.com/pytorch/pytorch/issues/56297).
    """
    assert dist.group.WORLD is not None, "`init_process_group` comes first"
    _left.append(dist.group.WORLD)
    dist.destroy_process_group()
