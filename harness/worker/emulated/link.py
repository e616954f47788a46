"""What carries the messages between ranks: real ones, through gloo or MPI, over a link that may be slower than the real
one.
"""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from types import MappingProxyType
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Type

import numpy as np
import torch
import torch.distributed as dist

from harness.core.rendezvous import Rendezvous
from harness.core.spec import RunSpec, Site
from harness.worker.distributed.process_group import destroy_process_group, init_process_group
from harness.worker.emulated.waiting import Waiting, now

MB = 2**20  # bytes
# What asking costs is measured so often, each time after so many seconds of sleep.
ASKED, ASKED_AFTER = 20, 0.005


class Carrier(ABC):
    """Built as Carrier(site, rendezvous): joins the other ranks.

    world_size: as the library that carries messages sees it. name: what that is. versions: of it.
    """

    world_size: int
    name: str
    versions: Mapping[str, str] = MappingProxyType({})

    def __init__(self, site: Site, rendezvous: Rendezvous) -> None:
        super().__init__()

    @abstractmethod
    def sum(self, buffer: np.ndarray) -> None:
        """Over the ranks, in place."""

    @abstractmethod
    def close(self) -> None:
        """Leaves the other ranks."""


class Alone(Carrier):
    world_size, name = 1, "none"

    def sum(self, buffer: np.ndarray) -> None:
        pass

    def close(self) -> None:
        pass


class Gloo(Carrier):
    name = "gloo"

    def __init__(self, site: Site, rendezvous: Rendezvous) -> None:
        self.world_size = init_process_group("gloo", site, rendezvous)

    def sum(self, buffer: np.ndarray) -> None:
        dist.all_reduce(torch.from_numpy(buffer))

    def close(self) -> None:
        destroy_process_group()


class Mpi(Carrier):
    def __init__(self, site: Site, rendezvous: Rendezvous) -> None:
        from harness.worker.distributed import mpi

        self.ranks, self.versions = mpi.MpiRanks(), mpi.versions()
        self.world_size, self.name = self.ranks.world_size, self.ranks.name

    def sum(self, buffer: np.ndarray) -> None:
        self.ranks.sum(buffer)

    def close(self) -> None:
        self.ranks.close()


CARRIERS: Dict[str, Type[Carrier]] = {"plain": Alone, "allreduce": Gloo, "mpi": Mpi}


class Link:
    """Messages of float32 that are summed over the ranks.

    Where a bandwidth is set, a message begins when all ranks are there, and takes `link_seconds(bytes)`; longer only
    where the real message does. Where only a latency is set, it comes on top of the real message.
    """

    def __init__(
        self, spec: RunSpec, site: Site, rendezvous: Rendezvous, options: Mapping[str, Any], waiting: Waiting
    ) -> None:
        self.carrier = CARRIERS[spec.strategy](site, rendezvous)
        self.rank, self.world_size, self.waiting = rendezvous.rank, self.carrier.world_size, waiting
        self.latency = options["latency_ms"] / 1000
        self.bandwidth = options["bandwidth_mb"] and options["bandwidth_mb"] * MB
        self.emulated = self.world_size > 1 and bool(self.latency or self.bandwidth)
        self.name = self.carrier.name
        if self.emulated:
            self.asking = self._seconds_of_asking()
            bandwidth = f"{options['bandwidth_mb']:g} MB/s" if self.bandwidth else "its own bandwidth"
            self.name += f", emulated link: {options['latency_ms']:g} ms, {bandwidth}"

    def link_seconds(self, nbytes: int) -> float:
        """Of a ring allreduce: each rank sends 2 (n - 1) / n of the message (Patarasuk and Yuan 2009, JPDC 69(2)); the
        latency is that of the whole message."""
        return self.latency + 2 * (self.world_size - 1) / self.world_size * nbytes / self.bandwidth

    def sum(self, buffer: np.ndarray, after: Optional[float] = None) -> Optional[float]:
        """In place. Gives the moment at which the link is free again, for the next message's `after`; None where the
        link is the real one."""
        if not self.emulated:
            self.carrier.sum(buffer)
            return None
        begin = self._begin(after)
        self.carrier.sum(buffer)
        end = begin + self.link_seconds(buffer.nbytes) if self.bandwidth else now() + self.latency
        self.waiting.until(end)
        return end

    def _seconds_of_asking(self) -> float:
        """What it takes to learn that all ranks are there, when they come at the same time and have slept before: the
        median of the tries, and its mean over the ranks."""
        taken = []
        for _ in range(ASKED):
            self.allreduce_sum([0.0])
            self.waiting.until(now() + ASKED_AFTER)
            begin = now()
            self.allreduce_sum([0.0])
            taken.append(now() - begin)
        return self.allreduce_sum([statistics.median(taken)])[0] / self.world_size

    def _begin(self, after: Optional[float]) -> float:
        """When the last rank is there. Of a message that follows another one: counted from the end of that, so that
        what it takes to ask the others is part of the message's time, and does not come on top of each."""
        late = np.zeros(self.world_size)
        if after is None:
            self.carrier.sum(late)
            return now() - self.asking
        late[self.rank] = max(0.0, now() - after)
        self.carrier.sum(late)
        return after + float(late.max())

    def allreduce_sum(self, values: Sequence[float]) -> List[float]:
        sums = np.array(values, np.float64)
        self.carrier.sum(sums)
        return [float(value) for value in sums]


def parts(size: int, pieces: int) -> List[Tuple[int, int]]:
    """The [begin, end) of `pieces` nearly equal parts of a buffer, in order."""
    return [(size * piece // pieces, size * (piece + 1) // pieces) for piece in range(pieces)]
