"""The ranks of torch.distributed meet: those of PyTorch, and of framework=emulated over gloo."""

from __future__ import annotations

import datetime

import torch.distributed as dist

from harness.spec import Site
from harness.worker.rendezvous import Rendezvous


def meet(backend: str, site: Site, rendezvous: Rendezvous) -> int:
    """Waits for all ranks, at most the site's timeout. Gives how many there are as torch.distributed sees it.

    backend: "gloo" or "nccl". `dist.destroy_process_group` takes leave.
    """
    dist.init_process_group(
        backend,
        init_method=f"tcp://{rendezvous.master_address}:{rendezvous.master_port}",
        rank=rendezvous.rank,
        world_size=rendezvous.world_size,
        timeout=datetime.timedelta(seconds=site.timeout_seconds),
    )
    return dist.get_world_size()
