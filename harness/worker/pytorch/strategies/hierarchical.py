"""Node by node: gradients are summed inside each node, then between the nodes, then handed out inside."""

from __future__ import annotations

from typing import Optional

import torch
import torch.distributed as dist
from torch.futures import Future

from harness.spec import RunSpec, Site
from harness.worker.pytorch.strategies.allreduce import Allreduce, Reduction
from harness.worker.rendezvous import Rendezvous


class Hierarchical(Allreduce):
    """One message per node crosses the network, however many GPUs a node has (Goyal et al. 2017, section 4.1)."""

    def __init__(self, spec: RunSpec, site: Site, rendezvous: Rendezvous, device: torch.device) -> None:
        super().__init__(spec, site, rendezvous, device)
        # Ranks are placed evenly, node by node (harness/plan.py).
        per_node = rendezvous.local_world_size
        leaders = range(0, self.world_size, per_node)
        # Every rank makes every group, in the same order: torch wants it so.
        groups = [dist.new_group(list(range(first, first + per_node))) for first in leaders]
        self.between = dist.new_group(list(leaders))
        self.leader = rendezvous.rank - rendezvous.local_rank
        self.leads, self.inside = rendezvous.local_rank == 0, groups[self.leader // per_node]
        self.communication += f", {len(groups)} x {per_node}"

    def reduction(self) -> Optional[Reduction]:
        return self._mean

    def _mean(self, bucket: dist.GradBucket) -> Future:
        mean = bucket.buffer().div_(self.world_size)
        self.sum(mean)
        future: Future = Future(devices=[self.device] if self.device.type == "cuda" else [])
        future.set_result(mean)
        return future

    def sum(self, tensor: torch.Tensor) -> None:
        dist.reduce(tensor, self.leader, group=self.inside)
        if self.leads:
            dist.all_reduce(tensor, group=self.between)
        dist.broadcast(tensor, self.leader, group=self.inside)
