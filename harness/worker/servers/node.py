"""Sum over the ranks of a node in host memory, through a process started by its first rank, for frameworks without such
an operation."""

from __future__ import annotations

import numpy as np

from harness.core.rendezvous import Rendezvous
from harness.core.strategies import SYNCHRONOUS
from harness.worker.distributed.exchange import gather
from harness.worker.servers.client import Address, Client
from harness.worker.servers.colocated import ColocatedServer
from harness.worker.servers.parameters import Settings


class Node:
    """The connected ranks of this rank's node."""

    def __init__(self, rendezvous: Rendezvous, timeout_seconds: float) -> None:
        self.leads, self.ranks = rendezvous.local_rank == 0, rendezvous.local_world_size
        adder = Settings(SYNCHRONOUS, self.ranks, staleness=0, momentum=0.0, weight_decay=0.0, nesterov=False)
        self.server = ColocatedServer(adder, "127.0.0.1") if self.leads else None
        addresses = gather(rendezvous, self.server.address if self.server else None, timeout_seconds)
        own = addresses[rendezvous.rank - rendezvous.local_rank]
        # This server holds no weights.
        self.client = Client([Address(*own)], rendezvous.local_rank, [0], timeout_seconds)

    def sum(self, numbers: np.ndarray) -> None:
        """Sum one-dimensional float32 over the ranks of the node, in place."""
        self.client.sum(numbers)

    def broadcast(self, numbers: np.ndarray) -> None:
        """Copy the first rank's array to all ranks of the node, in place."""
        if not self.leads:
            numbers.fill(0)
        self.sum(numbers)

    def close(self) -> None:
        self.client.close()
        if self.server is not None:
            self.server.close()
