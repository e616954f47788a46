"""KVStore's servers hold the weights and the optimiser; ranks push gradients and receive weights.

Like `gluon.Trainer` with update_on_kvstore=True, but with PyTorch's SGD (rule.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple, Type

import mxnet as mx
import numpy as np

from harness.core.rendezvous import Rendezvous
from harness.core.spec import RunSpec, Site
from harness.core.strategies import SYNCHRONOUS, served_by
from harness.worker.mxnet.rule import Keys, Rule
from harness.worker.mxnet.servers import Servers
from harness.worker.mxnet.strategies import Gradients, Strategy
from harness.worker.servers.node import Node
from harness.worker.servers.server_optimizer import ServerOptimizer
from harness.worker.servers.topology import topology

SAVED = "servers.npz"


class ParameterServers(ServerOptimizer, Strategy):
    """One push and one answer per tensor and step, each as early as possible.

    clocks: answers of a key that counts updates: every worker adds one with each push. What others added between two
    answers is the staleness of this worker's update.
    """

    # For other types, servers test an uninitialised flag and may sum in float32 anyway.
    precision = "float32"

    def __init__(self, spec: RunSpec, site: Site, rendezvous: Rendezvous, context: mx.Context) -> None:
        super().__init__(spec, site, rendezvous, context)
        self.spec, self.place = spec, topology(spec, rendezvous)
        self.ranks = rendezvous.world_size
        self.synchronous = self.place.mode == SYNCHRONOUS
        # Connect it first: it uses the port that the scheduler will listen on.
        self.node = Node(rendezvous, site.timeout_seconds) if self.place.inside_nodes else None
        workers, servers = self.place.workers, self.place.servers
        self.servers = Servers(rendezvous, site.timeout_seconds, workers, servers, self.place.here)
        device = "device_" if context.device_type == "gpu" else ""
        kind = f"dist_{device}{'sync' if self.synchronous else 'async'}"
        self.store: Optional[mx.kvstore.KVStore] = None
        if self.place.worker is not None:
            self.servers.worker()
            self.store = mx.kvstore.create(kind)
        # Ranks that are not workers are counted by their placement.
        seen = int(self.store.num_workers) if self.store else workers
        self.world_size = seen * (self.place.per_node if self.place.inside_nodes else 1)
        self.communication = f"KVStore {kind}, parameter servers: {self.place.describe()}"
        self.keys = Keys.on(servers)
        if self.store:
            self._send_rule(updates=0)
            self.store._barrier()  # servers must have the rule before anything is pushed
        self.sums: Dict[Tuple[int, int], int] = {}
        self.turns: Dict[int, int] = {}
        self.weights: Gradients = []
        self.exchanged: List[mx.nd.NDArray] = []
        self.clocks: List[mx.nd.NDArray] = []
        # Statistics of this worker's updates before those in `clocks`; seen: last value of the clock.
        self.late, self.latest, self.pushed, self.seen = 0, 0, 0, 0
        self.resumed: Dict[str, np.ndarray] = {}

    def register_weights(self, weights: Gradients) -> None:
        self.weights = weights

    def server_step(self, gradients: Gradients) -> bool:
        self._init_servers()
        if self.node:
            self._update_by_node(self.node, gradients)
            return True
        for gradient, message in zip(gradients, self.exchanged):
            gradient.copyto(message)
        self._push()
        for message, weight in zip(self.exchanged, self.weights):
            message.copyto(weight)
        return True

    def means(self, gradients: Gradients) -> Gradients:
        if not self.synchronous:
            return gradients
        return [sums / self.place.workers for sums in self._read(self.keys.read_gradient)]

    def current(self) -> List[np.ndarray]:
        self._init_servers()
        self.allreduce_sum(np.zeros(1))
        if self.store:
            for number, message in enumerate(self.exchanged):
                self.store.pull(self.keys.weight(number), out=message)
        arrays = [message.asnumpy() for message in self.exchanged]
        if self.node:
            arrays = self._broadcast(self.node, arrays)
        self.allreduce_sum(np.zeros(1))
        return arrays

    def updates(self) -> Optional[Dict[str, Any]]:
        self._init_servers()
        self._count()
        told = np.zeros(2 + self.ranks)
        told[:2] = self.late, self.pushed
        told[2 + self.rank] = self.latest
        late, pushed, *largest = self.allreduce_sum(told).tolist()
        # Includes all updates: each worker had its last answer before the sum.
        updates = int(self._clock()) if self.store else 0
        if self.rank:
            return None
        return {
            "updates": updates,
            "mean": late / max(1.0, pushed),
            "max": int(max(largest)),
            "samples": updates * self.place.samples,
            "lead": 0 if self.synchronous else None,
        }

    def save(self, folder: Path) -> None:
        self._count()
        weights = self.current()
        momenta = [array.asnumpy() for array in self._read(self.keys.read_momentum)]
        updates = int(self._clock()) if self.store else 0
        np.savez(folder / f"staleness.rank{self.rank}.npz", numbers=[self.late, self.latest, self.pushed, self.seen])
        if self.rank == 0:
            held: Dict[str, Any] = {f"weight{n}": array for n, array in enumerate(weights)}
            held.update({f"momentum{n}": array for n, array in enumerate(momenta)})
            np.savez(folder / SAVED, updates=updates, **held)

    def load(self, folder: Path) -> None:
        # Every rank reads it, since KVStore takes the values of its first worker, which may be any rank.
        with np.load(folder / SAVED) as saved:
            self.resumed = {name: saved[name] for name in saved.files}
        with np.load(folder / f"staleness.rank{self.rank}.npz") as saved:
            self.late, self.latest, self.pushed, self.seen = map(int, saved["numbers"])

    def sum(self, array: mx.nd.NDArray) -> None:
        if not self.node:
            self._sum(array)
            return
        host = array.asnumpy()
        self.node.sum(host)
        if self.store:
            between = mx.nd.array(host, self.context)
            self._sum(between)
            host = between.asnumpy()
        self.node.broadcast(host)
        array[:] = host

    def close(self) -> None:
        self.servers.close(self._leave)
        if self.node:
            self.node.close()

    def _send_rule(self, updates: int) -> None:
        assert self.store is not None
        if self.store.rank == 0:
            scale = 1 / self.place.workers if self.synchronous else 1.0
            workers, samples = self.place.workers, self.place.samples
            rule = Rule(self.spec.optimizer, self.keys, workers, self.synchronous, samples, scale, updates)
            self.store.set_optimizer(rule)

    def _init_servers(self) -> None:
        """Initialise the servers, before the first step and after `load`, with the ranks' weights or a checkpoint's
        state."""
        if self.exchanged:
            return
        self.exchanged = [mx.nd.zeros(weight.shape, self.context) for weight in self.weights]
        if not self.store:
            return
        updates = int(self.resumed.get("updates", 0))
        if updates:
            self._send_rule(updates)
        self.store.init(self.keys.clock, mx.nd.ones(1, self.context) * updates)
        for number, weight in enumerate(self.weights):
            first = mx.nd.array(self.resumed.get(f"weight{number}", weight.asnumpy()), self.context)
            self.store.init(self.keys.weight(number), first)
            for key in (self.keys.read_momentum, self.keys.write_momentum, self.keys.read_gradient):
                self.store.init(key(number), self.exchanged[number])
        if updates:
            for number in range(len(self.weights)):
                momentum = mx.nd.array(self.resumed[f"momentum{number}"], self.context)
                self.store.push(self.keys.write_momentum(number), momentum * float(self.store.rank == 0))
        mx.nd.waitall()
        self.store._barrier()

    def _push(self) -> None:
        """Push the messages, each replaced by its answer, which KVStore writes there whatever `out` is."""
        assert self.store is not None
        # Its value is irrelevant. Built from the last gradient and the last answer, it is pushed in order: MXNet's
        # engine orders operations only by what they read and write.
        clock = self.exchanged[0].reshape(-1)[:1] + (self.clocks[-1] if self.clocks else 0)
        for number, message in enumerate(self.exchanged):
            # What the next forward pass needs first has priority.
            self.store.pushpull(self.keys.weight(number), message, priority=-number)
        self.store.pushpull(self.keys.clock, clock, priority=-len(self.exchanged))
        self.clocks.append(clock)

    def _update_by_node(self, node: Node, gradients: Gradients) -> None:
        """Push the node's mean gradients from its first rank, and broadcast the answer."""
        row = np.concatenate([gradient.asnumpy().ravel() for gradient in gradients])
        node.sum(row)
        row /= node.ranks
        if self.store:
            for message, part in zip(self.exchanged, self._parts(row)):
                message[:] = part
            self._push()
        answers = self._broadcast(node, [message.asnumpy() for message in self.exchanged])
        for weight, answer in zip(self.weights, answers):
            weight[:] = answer

    def _broadcast(self, node: Node, arrays: List[np.ndarray]) -> List[np.ndarray]:
        row = np.concatenate([array.ravel() for array in arrays])
        node.broadcast(row)
        return self._parts(row)

    def _parts(self, row: np.ndarray) -> List[np.ndarray]:
        ends = np.cumsum([message.size for message in self.exchanged])
        return [part.reshape(m.shape) for part, m in zip(np.split(row, ends[:-1]), self.exchanged)]

    def _read(self, key: Any) -> List[mx.nd.NDArray]:
        """Return what a push makes the servers store under `key`, for every tensor; on every worker, without
        training."""
        mx.nd.waitall()  # pushes under other keys may complete later
        found = [mx.nd.zeros(message.shape, self.context) for message in self.exchanged]
        if self.store:
            for number, array in enumerate(found):
                self.store.pushpull(key(number), array, out=array)
        return found

    def _clock(self) -> float:
        assert self.store is not None
        now = mx.nd.zeros(1, self.context)
        self.store.pull(self.keys.clock, out=now)
        return float(now.asscalar())

    def _count(self) -> None:
        for clock in self.clocks:
            now = int(clock.asscalar())
            late = now - 1 - self.seen
            self.late, self.latest, self.pushed = self.late + late, max(self.latest, late), self.pushed + 1
            self.seen = now
        self.clocks = []

    def _sum(self, array: mx.nd.NDArray) -> None:
        """Sum over the workers, which all wait. Two keys alternate: when a worker returns to one, all others have left
        it, since they synchronised at the other."""
        assert self.store is not None
        turn = self.turns[array.size] = 1 - self.turns.get(array.size, 1)
        if (array.size, turn) not in self.sums:
            self.sums[array.size, turn] = self.keys.sum(len(self.sums))
            self.store.init(self.sums[array.size, turn], array)
        key = self.sums[array.size, turn]
        if self.synchronous:
            self.store.pushpull(key, array)
            return
        self.store.push(key, array)
        mx.nd.waitall()
        self.store._barrier()
        self.store.pull(key, out=array)

    def _leave(self) -> None:
        self.store = None


STRATEGIES: Dict[str, Type[Strategy]] = dict.fromkeys(served_by("mxnet"), ParameterServers)
