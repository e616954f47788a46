"""Model of allreduce time beyond the measured number of GPUs: ring or tree, whichever is faster, as NCCL chooses."""

from __future__ import annotations

import math
from dataclasses import dataclass

from analysis.scaling.communication import ring_seconds, tree_seconds

GB = 1e9


@dataclass(frozen=True)
class Network:
    """The network between GPUs.

    Attributes:
        bus_gb_per_s: bus bandwidth of the slowest link, as nccl-tests defines it (analysis/measures/bandwidth.py).
        latency: seconds from one GPU to the next.
    """

    bus_gb_per_s: float
    latency: float

    def allreduce(self, size: float, gpus: int) -> float:
        """Return the seconds of an allreduce of `size` bytes."""
        rate = self.bus_gb_per_s * GB
        return min(formula(gpus, size, rate, self.latency) for formula in (ring_seconds, tree_seconds))

    def buckets(self, size: float, bucket: float, gpus: int) -> list[float]:
        """Return the seconds of each bucket, for gradients of `size` bytes in buckets of about `bucket` bytes."""
        n = max(1, math.ceil(size / bucket))
        return [self.allreduce(size / n, gpus)] * n
