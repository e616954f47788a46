"""Sums over the ranks of one node, in the host's memory: by a process beside its first rank, for frameworks that have
nothing of their own for it."""

from __future__ import annotations

import numpy as np

from harness.core.rendezvous import Rendezvous
from harness.core.strategies import SYNCHRONOUS
from harness.worker.distributed.exchange import gather
from harness.worker.servers.client import Address, Client
from harness.worker.servers.colocated import ColocatedServer
from harness.worker.servers.parameters import Settings


class Node:
    """The ranks of this rank's node, joined."""

    def __init__(self, rendezvous: Rendezvous, timeout_seconds: float) -> None:
        self.leads, self.ranks = rendezvous.local_rank == 0, rendezvous.local_world_size
        adder = Settings(SYNCHRONOUS, self.ranks, staleness=0, momentum=0.0, weight_decay=0.0, nesterov=False)
        self.beside = ColocatedServer(adder, "127.0.0.1") if self.leads else None
        addresses = gather(rendezvous, self.beside.address if self.beside else None, timeout_seconds)
        own = addresses[rendezvous.rank - rendezvous.local_rank]
        # It holds no weights.
        self.client = Client([Address(*own)], rendezvous.local_rank, [0], timeout_seconds)

    def sum(self, numbers: np.ndarray) -> None:
        """Over the ranks of the node, in place: one-dimensional, float32."""
        self.client.sum(numbers)

    def hand_out(self, numbers: np.ndarray) -> None:
        """The first rank's, in place."""
        if not self.leads:
            numbers.fill(0)
        self.sum(numbers)

    def close(self) -> None:
        self.client.close()
        if self.beside is not None:
            self.beside.close()
