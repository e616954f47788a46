"""A rank and the parameter servers of its run, in NumPy, for every framework."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from harness.core.rendezvous import Rendezvous
from harness.core.spec import RunSpec, Site
from harness.core.strategies import SYNCHRONOUS
from harness.worker.data_parallel import through_host
from harness.worker.distributed.exchange import gather, own_address
from harness.worker.servers.client import Address, Client, divide
from harness.worker.servers.colocated import ColocatedServer
from harness.worker.servers.node import Node
from harness.worker.servers.parameters import RESTARTABLE
from harness.worker.servers.protocol import FLOAT
from harness.worker.servers.server_optimizer import ServerOptimizer
from harness.worker.servers.topology import topology

SAVED = "servers.npz"


class ServerRank:
    """The server colocated with this rank, if any, and the client of all servers, if this rank is a worker.

    A row is a flat FLOAT array of all weights or all gradients, tensor by tensor in the order of `order`.
    """

    def __init__(self, spec: RunSpec, site: Site, rendezvous: Rendezvous) -> None:
        self.rank, self.timeout_seconds = rendezvous.rank, site.timeout_seconds
        self.place = topology(spec, rendezvous)
        self.server = ColocatedServer(self.place.settings(), own_address(rendezvous)) if self.place.here else None
        # Nodes that run only servers count as additional ranks and also send their names.
        everyone = replace(rendezvous, world_size=rendezvous.world_size + spec.server_nodes)
        told = gather(everyone, self.server.address if self.server else None, site.timeout_seconds)
        said = [address for address in told if address is not None]
        self.addresses = [Address(*address[:3]) for address in said]
        self.standalone_nodes = [address[3] for address in said if spec.server_nodes]
        self.client: Optional[Client] = None

    def describe(self) -> str:
        """Return a description of the servers for the start event."""
        return self.place.describe(self.standalone_nodes)

    def order(self, sizes: Sequence[int]) -> List[int]:
        """Return the numbers of the tensors in the order of a row, in which each server's share is contiguous."""
        return [number for share in divide(sizes, len(self.addresses)) for number in share]

    def connect(self, sizes: Sequence[int], latest: Optional[Callable[[], np.ndarray]] = None) -> None:
        """Connect to the servers.

        sizes: of all tensors, by number. latest: returns this rank's weights as a row, to restore a restarted server;
        None if this rank does not wait for one.
        """
        shares = [sum(sizes[number] for number in share) for share in divide(sizes, len(self.addresses))]
        if self.place.worker is not None:
            weights = latest if self.place.mode in RESTARTABLE else None
            self.client = Client(self.addresses, self.place.worker, shares, self.timeout_seconds, weights)

    def store(self, row: np.ndarray) -> None:
        """Store rank 0's weights in the servers."""
        if self.rank == 0:
            self._client().store(row, np.zeros_like(row))

    def push(self, row: np.ndarray, learning_rate: float) -> None:
        """Push a gradient and replace it by the weights to continue with. learning_rate: for the global batch."""
        self._client().push(row, self.place.pushed, self.place.scaled(learning_rate), row)

    def updates(self) -> Optional[Dict[str, Any]]:
        """See `Adapter.updates`."""
        if self.rank != 0:
            return None
        found = self._client().updates()
        return {
            "updates": found.updates,
            "mean": found.staleness_mean,
            "max": found.staleness_max,
            "samples": found.samples,
            "lead": found.lead,
            "returns": found.returns,
            "lost_updates": found.lost_updates,
            "lost_samples": found.lost_samples,
        }

    def servers_back(self) -> List[Dict[str, Any]]:
        """See `Adapter.servers_back`."""
        if self.client is None:
            return []
        returns, self.client.returns = self.client.returns, []
        return [back._asdict() for back in returns]

    def close(self) -> None:
        if self.client is not None:
            self.client.close()
        if self.server is not None:
            self.server.close()

    def _client(self) -> Client:
        assert self.client is not None
        return self.client


class HostRank(ServerRank):
    """For frameworks without communication of their own: sums go through the servers, and first through a process of
    the node if one worker represents the node."""

    def __init__(self, spec: RunSpec, site: Site, rendezvous: Rendezvous) -> None:
        super().__init__(spec, site, rendezvous)
        self.node = Node(rendezvous, site.timeout_seconds) if self.place.inside_nodes else None
        self.shapes: List[Tuple[int, ...]] = []

    def register_weights(self, weights: Sequence[np.ndarray]) -> None:
        """Connect to the servers and store rank 0's weights."""
        self.shapes = [weight.shape for weight in weights]
        # No restarts: a server that ends during a sum has lost the summands.
        self.connect([weight.size for weight in weights], latest=None)
        self.store(self.row(weights))
        self.barrier()  # no pushes before all weights are stored

    def row(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Return the arrays, one per tensor by number, as a row."""
        order = self.order([array.size for array in arrays])
        return np.concatenate([arrays[number].ravel() for number in order]).astype(FLOAT, copy=False)

    def arrays(self, row: np.ndarray) -> List[np.ndarray]:
        """Invert `row`."""
        sizes = [math.prod(shape) for shape in self.shapes]
        order = self.order(sizes)
        parts = dict(zip(order, np.split(row, np.cumsum([sizes[number] for number in order])[:-1])))
        return [parts[number].reshape(shape) for number, shape in enumerate(self.shapes)]

    def empty(self) -> np.ndarray:
        """Return an uninitialised row."""
        return np.empty(sum(math.prod(shape) for shape in self.shapes), FLOAT)

    def push(self, row: np.ndarray, learning_rate: float) -> None:
        if self.node:
            self.node.sum(row)
            row /= self.place.per_node
        if self.client:
            super().push(row, learning_rate)
        if self.node:
            self.node.broadcast(row)

    def means(self, gradients: List[np.ndarray]) -> List[np.ndarray]:
        """Return the mean gradients of the last step if the update is synchronous, else the rank's own as given."""
        if self.place.mode != SYNCHRONOUS:
            return gradients
        row = self.empty()
        self._client().mean(row)
        return self.arrays(row)

    def current(self) -> List[np.ndarray]:
        """Return the servers' weights after every rank's last step."""
        row = self.empty()
        self.barrier()
        if self.client:
            self.client.pull(row)
        if self.node:
            self.node.broadcast(row)
        self.barrier()
        return self.arrays(row)

    def sum(self, numbers: np.ndarray) -> None:
        """Sum one-dimensional FLOAT over all ranks, in place."""
        if self.node:
            self.node.sum(numbers)
        if self.client:
            self.client.sum(numbers)
        if self.node:
            self.node.broadcast(numbers)

    def barrier(self) -> None:
        self.sum(np.zeros(1, FLOAT))

    def save(self, folder: Path) -> None:
        """Save the servers' state. The loop calls this between two sums over the ranks, so that no rank is training."""
        if self.rank == 0:
            weights, velocity = self._client().load()
            counters = json.dumps(self._client().counters())
            np.savez(folder / SAVED, weights=weights, velocity=velocity, counters=counters)

    def load(self, folder: Path) -> None:
        self.barrier()  # no messages in flight
        if self.rank == 0:
            with np.load(folder / SAVED) as saved:
                self._client().store(saved["weights"], saved["velocity"])
                self._client().recall(json.loads(str(saved["counters"])))
        self.barrier()  # no pushes before all weights are stored

    def close(self) -> None:
        super().close()
        if self.node:
            self.node.close()


class ByHostRank(ServerOptimizer):
    """Mixin for strategies that reach their servers by a `HostRank`; precedes the framework's base class."""

    def __init__(self, spec: RunSpec, site: Site, rendezvous: Rendezvous) -> None:
        super().__init__(spec, site, rendezvous)  # type: ignore[call-arg]
        self.ranks = HostRank(spec, site, rendezvous)
        self.communication = f"parameter servers: {self.ranks.describe()}{through_host(spec)}"

    def allreduce_sum(self, values: np.ndarray) -> np.ndarray:
        numbers = values.astype(FLOAT)
        self.ranks.sum(numbers)
        return numbers.astype(values.dtype)

    def means(self, gradients: List[np.ndarray]) -> List[np.ndarray]:
        return self.ranks.means(gradients)

    def current(self) -> List[np.ndarray]:
        return self.ranks.current()

    def updates(self) -> Optional[Dict[str, Any]]:
        return self.ranks.updates()

    def save(self, folder: Path) -> None:
        self.ranks.save(folder)

    def load(self, folder: Path) -> None:
        self.ranks.load(folder)

    def close(self) -> None:
        self.ranks.close()
