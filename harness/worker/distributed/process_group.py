"""The process group of torch.distributed, for PyTorch and for framework=emulated over gloo."""

from __future__ import annotations

import datetime
from typing import List

import torch.distributed as dist

from harness.core.rendezvous import Rendezvous
from harness.core.spec import Site


def init_process_group(backend: str, site: Site, rendezvous: Rendezvous) -> int:
    """Wait for all ranks, at most the site's timeout. Return the world size as torch.distributed sees it.

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


# Destroyed groups, kept until the process ends.
_left: List[dist.ProcessGroup] = []


def destroy_process_group() -> None:
    """Disconnect from the other ranks.

    Release CUDA graphs with collectives first: NCCL waits for them. The group object is kept, since otherwise its last
    owner would be DistributedDataParallel's reducer, which waits for gloo's threads while holding the GIL, and a thread
    that frees a message waits for the GIL (github.com/pytorch/pytorch/issues/56297).
    """
    assert dist.group.WORLD is not None, "`init_process_group` comes first"
    _left.append(dist.group.WORLD)
    dist.destroy_process_group()
