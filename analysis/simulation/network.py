"""What an allreduce takes on more GPUs than were measured: a ring or a tree, whichever is quicker, as NCCL chooses."""

from __future__ import annotations

import math
from dataclasses import dataclass

from analysis.scaling.communication import ring_seconds, tree_seconds

GB = 1e9


@dataclass(frozen=True)
class Network:
    """bus_gb_per_s: as nccl-tests defines it (analysis/measures/bandwidth.py), of the slowest link on the way. latency:
    seconds from one GPU to the next."""

    bus_gb_per_s: float
    latency: float

    def allreduce(self, size: float, gpus: int) -> float:
        """Seconds for a message of `size` bytes."""
        rate = self.bus_gb_per_s * GB
        return min(formula(gpus, size, rate, self.latency) for formula in (ring_seconds, tree_seconds))

    def buckets(self, size: float, bucket: float, gpus: int) -> list[float]:
        """Seconds of each, where gradients of `size` bytes are sent in buckets of about `bucket` bytes."""
        n = max(1, math.ceil(size / bucket))
        return [self.allreduce(size / n, gpus)] * n
