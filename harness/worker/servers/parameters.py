"""The state and updates of one parameter server, without sockets; called by one thread per worker."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence

import numpy as np

from harness.core.strategies import ASYNCHRONOUS, BOUNDED, SYNCHRONOUS
from harness.worker.servers.protocol import FLOAT
from harness.worker.servers.shared_counters import SharedCounters

# In these modes a server may be restarted from a worker's weights. A synchronous update needs the lost state.
RESTARTABLE = (ASYNCHRONOUS, BOUNDED)
# Counters: one of the server, or one per worker.
SERVER_COUNTERS = ("updates", "staleness_sum", "staleness_max", "samples", "lead", "returns", "lost_updates")
WORKER_COUNTERS = ("seen", "clocks", "given", "had")


class WorkerGone(RuntimeError):
    """A worker waits for another one that is gone."""


@dataclass(frozen=True)
class Settings:
    """mode: SYNCHRONOUS, one update with the mean of all workers' gradients; ASYNCHRONOUS, one update per gradient on
    arrival; BOUNDED, as ASYNCHRONOUS, but a worker more than `staleness` steps ahead of the slowest waits. workers:
    number that push. The other fields are those of OptimizerSpec."""

    mode: str
    workers: int
    staleness: int
    momentum: float
    weight_decay: float
    nesterov: bool


class Parameters:
    """A server's share of weights and momenta, as flat arrays.

    updates: number applied. samples: number that they are based on. seen[worker]: `updates` when the worker received
    its weights. clocks[worker]: steps it has pushed. The staleness of an update is the number of updates applied since
    its worker received its weights. lead: largest number of steps by which a worker was ahead of the slowest when it
    received weights for its next step.

    For restarts: returns: number of restarts. lost_updates: part of `updates` missing in the weights, since the
    worker's copy was older. given[worker]: updates contained in the weights it received last; had[worker]: in those of
    its last push, which it certainly has. heard[worker]: pushes applied since the workers connected; not in
    checkpoints.
    """

    def __init__(self, settings: Settings, shared: Optional[SharedCounters] = None) -> None:
        """shared: counters that survive a restart of the server."""
        self.settings, self.shared = settings, shared
        self.weights = self.velocity = self.mean = self.scratch = np.empty(0, FLOAT)
        self.holds = False
        self.updates = self.staleness_sum = self.staleness_max = self.samples = self.lead = 0
        self.returns = self.lost_updates = 0
        # One array, because a single write into the shared counters takes 4 us for 64 workers instead of 50.
        self.each = np.zeros((len(WORKER_COUNTERS) + 1, settings.workers), np.int64)
        self.seen, self.clocks, self.given, self.had, self.heard = self.each
        self._read_counters()
        # Guards the state; notified when it changes.
        self.changed = threading.Condition()
        self.gone: Optional[str] = None
        self.updating, self.adding = _Barrier(self), _Barrier(self)
        self.total = np.empty(0, FLOAT)

    def store(self, weights: np.ndarray, velocity: np.ndarray) -> None:
        with self.changed:
            self.weights, self.velocity, self.holds = weights, velocity, True
            self.mean, self.scratch = np.zeros_like(weights), np.zeros_like(weights)

    def push(self, worker: int, gradient: np.ndarray, samples: int, rate: float, out: np.ndarray) -> None:
        """Apply a gradient, which is not modified, and write the weights to continue with into `out`.

        Raises WorkerGone, or ValueError if the workers of one update give different learning rates.
        """
        with self.changed:
            self.clocks[worker] += 1
            self.heard[worker] += 1
            self.had[worker] = self.given[worker]
            if self.settings.mode == SYNCHRONOUS:
                self.samples += samples
                self.updating.arrive(worker, gradient, rate, self._apply_mean)
            else:
                self._count(self.updates - int(self.seen[worker]))
                self.samples += samples
                self._step(gradient, rate)
                self._write_counters()
                self.changed.notify_all()
            self._send_weights(worker, out)

    def revive(self, worker: int, pushes: int, weights: np.ndarray, out: np.ndarray) -> Dict[str, Any]:
        """Reconnect a worker after a restart. The weights of the first worker to do so are restored, without momenta.

        pushes: this worker's acknowledged pushes since it first connected. Returns applied: one more push was applied,
        and `out` has the weights to continue with; otherwise the worker must push again. taken: its weights were
        restored. lost_updates: updates missing in them.
        """
        with self.changed:
            applied, taken = bool(self.heard[worker] > pushes), not self.holds
            lost = 0
            if taken:
                self.store(weights, np.zeros_like(weights))
                # The last push, made with the weights that the worker still has, was not acknowledged.
                in_copy = int((self.had if applied else self.given)[worker])
                lost = self.updates - in_copy - self.lost_updates
                self.lost_updates += lost
                self.returns += 1
                self._write_counters()
            if applied:
                self._send_weights(worker, out)
            return {"applied": applied, "taken": taken, "lost_updates": lost}

    def pull(self, out: np.ndarray) -> None:
        """Read the current weights, not for a worker's next step."""
        with self.changed:
            np.copyto(out, self.weights)

    def add(self, worker: int, numbers: np.ndarray) -> np.ndarray:
        """Return the sum over the workers, on every worker. Raises WorkerGone."""
        with self.changed:
            self.adding.arrive(worker, numbers, 0.0, self._add)
            return self.total  # not overwritten before this worker adds again

    def counters(self) -> Dict[str, Any]:
        with self.changed:
            of_server = {name: int(getattr(self, name)) for name in SERVER_COUNTERS}
            return {**of_server, **{name: getattr(self, name).tolist() for name in WORKER_COUNTERS}}

    def recall(self, counters: Dict[str, Any]) -> None:
        with self.changed:
            # Older checkpoints may lack a counter.
            for name in counters.keys() & set(SERVER_COUNTERS):
                setattr(self, name, counters[name])
            for name in counters.keys() & set(WORKER_COUNTERS):
                getattr(self, name)[:] = counters[name]
            self._write_counters()

    def lose(self, worker: int, why: str) -> None:
        """Fail everyone who waits, or will wait, for this worker."""
        with self.changed:
            self.gone = self.gone or f"worker {worker} is gone: {why}"
            self.changed.notify_all()

    def wait(self, until: Callable[[], bool]) -> None:
        while not until():
            if self.gone:
                raise WorkerGone(self.gone)
            self.changed.wait()

    def _send_weights(self, worker: int, out: np.ndarray) -> None:
        if self.settings.mode == BOUNDED:
            own = int(self.clocks[worker])
            # Ho et al. 2013, section 2: the fastest and the slowest are at most `staleness` steps apart.
            self.wait(lambda: bool(own - self.clocks.min() <= self.settings.staleness))
        self.lead = max(self.lead, int(self.clocks[worker] - self.clocks.min()))
        self.seen[worker] = self.updates
        self.given[worker] = self.updates - self.lost_updates
        np.copyto(out, self.weights)
        self._write_counters()

    def _write_counters(self) -> None:
        if self.shared is not None:
            self.shared.write([getattr(self, name) for name in SERVER_COUNTERS], self.each.reshape(-1))

    def _read_counters(self) -> None:
        kept = self.shared.read() if self.shared is not None else None
        if kept is not None:
            for n, name in enumerate(SERVER_COUNTERS):
                setattr(self, name, kept[n])
            self.each[:] = np.reshape(kept[len(SERVER_COUNTERS) :], self.each.shape)

    def _apply_mean(self, gradients: Sequence[np.ndarray], rate: float) -> None:
        self._count(self.updates - int(self.seen.min()))
        # Sum in the order of workers, not of arrival, so that the result is reproducible to the last bit.
        np.copyto(self.mean, gradients[0])
        for gradient in gradients[1:]:
            self.mean += gradient
        self.mean /= len(gradients)
        self._step(self.mean, rate)

    def _step(self, gradient: np.ndarray, rate: float) -> None:
        """Take an SGD step as defined by `Adapter.train` in harness/worker/adapter.py; does not modify the gradient."""
        decayed = np.multiply(self.weights, self.settings.weight_decay, out=self.scratch)
        decayed += gradient
        if self.settings.momentum:
            self.velocity *= self.settings.momentum
            self.velocity += decayed
            if self.settings.nesterov:
                decayed += self.velocity * FLOAT.type(self.settings.momentum)
            else:
                np.copyto(decayed, self.velocity)
        decayed *= rate
        self.weights -= decayed
        self.updates += 1

    def _count(self, staleness: int) -> None:
        self.staleness_sum += staleness
        self.staleness_max = max(self.staleness_max, staleness)

    def _add(self, numbers: Sequence[np.ndarray], _: float) -> None:
        self.total = numbers[0].copy()
        for more in numbers[1:]:
            self.total += more


def counters_length(settings: Settings) -> int:
    return len(SERVER_COUNTERS) + (len(WORKER_COUNTERS) + 1) * settings.workers


class _Barrier:
    """A barrier to which every worker brings an array; the last one to arrive processes them."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self.arrays: Dict[int, np.ndarray] = {}
        self.rate = 0.0
        self.number = 0

    def arrive(
        self, worker: int, numbers: np.ndarray, rate: float, then: Callable[[List[np.ndarray], float], None]
    ) -> None:
        workers = self.parameters.settings.workers
        if self.arrays and rate != self.rate:
            raise ValueError(f"worker {worker} uses learning rate {rate}, another one {self.rate}")
        self.arrays[worker], self.rate = numbers, rate
        if len(self.arrays) == workers:
            then([self.arrays[number] for number in range(workers)], rate)
            self.arrays = {}
            self.number += 1
            self.parameters.changed.notify_all()
        else:
            number = self.number
            self.parameters.wait(lambda: self.number > number)
