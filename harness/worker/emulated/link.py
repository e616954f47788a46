"""Messages between ranks: real ones by gloo or MPI, over a link that may be slower than the real one."""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from types import MappingProxyType
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Type

import numpy as np

from harness.core.rendezvous import Rendezvous
from harness.core.spec import RunSpec, Site
from harness.worker.emulated.waiting import Waiting, now

MB = 2**20  # bytes
# Repetitions, and seconds of sleep before each, for measuring the cost of synchronising.
SYNC_TRIES, SYNC_SLEEP_SECONDS = 20, 0.005


class Carrier(ABC):
    """Constructed as Carrier(site, rendezvous); joins the other ranks.

    world_size: as the communication library sees it. name: the name of that library. versions: its versions.
    """

    world_size: int
    name: str
    versions: Mapping[str, str] = MappingProxyType({})

    def __init__(self, site: Site, rendezvous: Rendezvous) -> None:
        super().__init__()

    @abstractmethod
    def sum(self, buffer: np.ndarray) -> None:
        """Sum over the ranks, in place."""

    @abstractmethod
    def close(self) -> None:
        """Disconnect from the other ranks."""


class Alone(Carrier):
    world_size, name = 1, "none"

    def sum(self, buffer: np.ndarray) -> None:
        pass

    def close(self) -> None:
        pass


class Gloo(Carrier):
    name = "gloo"

    def __init__(self, site: Site, rendezvous: Rendezvous) -> None:
        # Only here: one rank needs no torch, which is most of the time that it takes to start.
        import torch

        from harness.worker.distributed import process_group

        self.torch, self.process_group = torch, process_group
        self.versions = {"torch": str(torch.__version__)}
        self.world_size = process_group.init_process_group("gloo", site, rendezvous)

    def sum(self, buffer: np.ndarray) -> None:
        self.torch.distributed.all_reduce(self.torch.from_numpy(buffer))

    def close(self) -> None:
        self.process_group.destroy_process_group()


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


def carrier_of(strategy: str, world_size: int) -> Type[Carrier]:
    return Alone if world_size == 1 and strategy == "allreduce" else CARRIERS[strategy]


class Link:
    """Sums float32 messages over the ranks.

    With a bandwidth, a message starts when all ranks have arrived and takes `link_seconds(bytes)`, or as long as the
    real message if that is more. With a latency only, it is added to the real message.
    """

    def __init__(
        self, spec: RunSpec, site: Site, rendezvous: Rendezvous, options: Mapping[str, Any], waiting: Waiting
    ) -> None:
        self.carrier = carrier_of(spec.strategy, rendezvous.world_size)(site, rendezvous)
        self.rank, self.world_size, self.waiting = rendezvous.rank, self.carrier.world_size, waiting
        self.latency = options["latency_ms"] / 1000
        self.bandwidth = options["bandwidth_mb"] and options["bandwidth_mb"] * MB
        self.emulated = self.world_size > 1 and bool(self.latency or self.bandwidth)
        self.name = self.carrier.name
        if self.emulated:
            self.sync_seconds = self._sync_seconds()
            bandwidth = f"{options['bandwidth_mb']:g} MB/s" if self.bandwidth else "its own bandwidth"
            self.name += f", emulated link: {options['latency_ms']:g} ms, {bandwidth}"

    def link_seconds(self, nbytes: int) -> float:
        """Return the time of a ring allreduce, in which each rank sends 2 (n - 1) / n of the message (Patarasuk and
        Yuan 2009, JPDC 69(2)); the latency applies once per message."""
        return self.latency + 2 * (self.world_size - 1) / self.world_size * nbytes / self.bandwidth

    def sum(self, buffer: np.ndarray, after: Optional[float] = None) -> Optional[float]:
        """Sum in place. Return when the link is free again, for the next message's `after`; None for a real link."""
        if not self.emulated:
            self.carrier.sum(buffer)
            return None
        begin = self._wait_for_ranks(after)
        self.carrier.sum(buffer)
        end = begin + self.link_seconds(buffer.nbytes) if self.bandwidth else now() + self.latency
        self.waiting.until(end)
        return end

    def _sync_seconds(self) -> float:
        """Return the seconds needed to learn that all ranks have arrived, if they arrive together after sleeping: the
        median of several tries, averaged over the ranks."""
        taken = []
        for _ in range(SYNC_TRIES):
            self.allreduce_sum([0.0])
            self.waiting.until(now() + SYNC_SLEEP_SECONDS)
            begin = now()
            self.allreduce_sum([0.0])
            taken.append(now() - begin)
        return self.allreduce_sum([statistics.median(taken)])[0] / self.world_size

    def _wait_for_ranks(self, after: Optional[float]) -> float:
        """Return when the last rank arrived. For a message that follows another one, count from the end of that, so
        that synchronising is part of the message's time and not added to it."""
        late = np.zeros(self.world_size)
        if after is None:
            self.carrier.sum(late)
            return now() - self.sync_seconds
        late[self.rank] = max(0.0, now() - after)
        self.carrier.sum(late)
        return after + float(late.max())

    def allreduce_sum(self, values: Sequence[float]) -> List[float]:
        sums = np.array(values, np.float64)
        self.carrier.sum(sums)
        return [float(value) for value in sums]


def parts(size: int, pieces: int) -> List[Tuple[int, int]]:
    """Return [begin, end) of `pieces` nearly equal parts of a buffer, in order."""
    return [(size * piece // pieces, size * (piece + 1) // pieces) for piece in range(pieces)]
