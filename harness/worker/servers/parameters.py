"""What one parameter server holds, and what an update is. Knows no sockets; called by one thread per worker."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence

import numpy as np

from harness.core.strategies import ASYNCHRONOUS, BOUNDED, SYNCHRONOUS
from harness.worker.servers.protocol import FLOAT
from harness.worker.servers.shared_counters import SharedCounters

# A server may come back in these: it can go on with weights that a worker has. A synchronous update needs all of it.
COMES_BACK = (ASYNCHRONOUS, BOUNDED)
# Of the state, beside weights and momenta.
OF_ALL = ("updates", "staleness_sum", "staleness_max", "samples", "lead", "returns", "lost_updates")
OF_EACH = ("seen", "clocks", "given", "had")


class WorkerGone(RuntimeError):
    """What a worker waits for will never come: another one is gone."""


@dataclass(frozen=True)
class Settings:
    """mode: SYNCHRONOUS, one update with the mean of all workers' gradients; ASYNCHRONOUS, one update with each
    gradient when it comes; BOUNDED, the same, but a worker that is more than `staleness` steps ahead of the slowest
    waits. workers: how many push. The rest is of the optimiser (OptimizerSpec)."""

    mode: str
    workers: int
    staleness: int
    momentum: float
    weight_decay: float
    nesterov: bool


class Parameters:
    """A server's share of the weights and momenta, as one row of numbers.

    updates: so many were applied. seen: of each worker, how many had been when it took its weights. clocks: of each
    worker, how many steps it has pushed. staleness of an update: how many others were applied between the moment when
    its worker took the weights and the moment when it was applied. samples: that all updates together were made of.
    lead: the most steps that a worker was ahead of the slowest when it was given weights for its next step.

    Of a server that comes back: returns: how often it has. lost_updates: how many of `updates` are not in its weights,
    since they came after the copy that it went on with. given: of each worker, how many of the updates are in the
    weights that it was given last. had: in those that it made its last push with, which it has for certain. heard:
    how many pushes of each were applied since the workers came; not in a checkpoint.
    """

    def __init__(self, settings: Settings, shared: Optional[SharedCounters] = None) -> None:
        """shared: what a server knew that ended, and is to outlive this one."""
        self.settings, self.shared = settings, shared
        self.weights = self.velocity = self.mean = self.scratch = np.empty(0, FLOAT)
        self.holds = False
        self.updates = self.staleness_sum = self.staleness_max = self.samples = self.lead = 0
        self.returns = self.lost_updates = 0
        # One array, which is written into the shared counters at once: with 64 workers in 4 us, number by number in 50.
        self.each = np.zeros((len(OF_EACH) + 1, settings.workers), np.int64)
        self.seen, self.clocks, self.given, self.had, self.heard = self.each
        self._remember()
        # Held by whoever looks at the state or changes it; waited on by whoever needs others to change it.
        self.changed = threading.Condition()
        self.gone: Optional[str] = None
        self.updating, self.adding = _Meeting(self), _Meeting(self)
        self.total = np.empty(0, FLOAT)

    def store(self, weights: np.ndarray, velocity: np.ndarray) -> None:
        with self.changed:
            self.weights, self.velocity, self.holds = weights, velocity, True
            self.mean, self.scratch = np.zeros_like(weights), np.zeros_like(weights)

    def push(self, worker: int, gradient: np.ndarray, samples: int, rate: float, out: np.ndarray) -> None:
        """Applies a gradient, which stays untouched until this returns; `out` has then what the worker goes on with.

        Raises WorkerGone, and ValueError where the workers of one update give different learning rates.
        """
        with self.changed:
            self.clocks[worker] += 1
            self.heard[worker] += 1
            self.had[worker] = self.given[worker]
            if self.settings.mode == SYNCHRONOUS:
                self.samples += samples
                self.updating.bring(worker, gradient, rate, self._apply_mean)
            else:
                self._count(self.updates - int(self.seen[worker]))
                self.samples += samples
                self._step(gradient, rate)
                self._keep()
                self.changed.notify_all()
            self._give(worker, out)

    def revive(self, worker: int, pushes: int, weights: np.ndarray, out: np.ndarray) -> Dict[str, Any]:
        """After the server came back. The first worker's copy of the weights is what it goes on with, without momentum.

        pushes: of this worker, that were answered since it first came. Gives applied: whether one more was applied;
        `out` has then what this worker goes on with, otherwise it has to push again. taken: whether its copy was.
        lost_updates: that are not in it.
        """
        with self.changed:
            applied, taken = bool(self.heard[worker] > pushes), not self.holds
            lost = 0
            if taken:
                self.store(weights, np.zeros_like(weights))
                # No answer came to what was pushed with the weights that it still has.
                in_copy = int((self.had if applied else self.given)[worker])
                lost = self.updates - in_copy - self.lost_updates
                self.lost_updates += lost
                self.returns += 1
                self._keep()
            if applied:
                self._give(worker, out)
            return {"applied": applied, "taken": taken, "lost_updates": lost}

    def pull(self, out: np.ndarray) -> None:
        """The weights of this moment; for looking at them, not for a worker's next step."""
        with self.changed:
            np.copyto(out, self.weights)

    def add(self, worker: int, numbers: np.ndarray) -> np.ndarray:
        """Sums over the workers, on every worker. Raises WorkerGone."""
        with self.changed:
            self.adding.bring(worker, numbers, 0.0, self._add)
            return self.total  # the next sum is made when this worker has come again

    def counters(self) -> Dict[str, Any]:
        with self.changed:
            of_all = {name: int(getattr(self, name)) for name in OF_ALL}
            return {**of_all, **{name: getattr(self, name).tolist() for name in OF_EACH}}

    def recall(self, counters: Dict[str, Any]) -> None:
        with self.changed:
            # A checkpoint may be older than a counter.
            for name in counters.keys() & set(OF_ALL):
                setattr(self, name, counters[name])
            for name in counters.keys() & set(OF_EACH):
                getattr(self, name)[:] = counters[name]
            self._keep()

    def lose(self, worker: int, why: str) -> None:
        """Whoever waits for this worker, or will, has it said."""
        with self.changed:
            self.gone = self.gone or f"worker {worker} is gone: {why}"
            self.changed.notify_all()

    def wait(self, until: Callable[[], bool]) -> None:
        while not until():
            if self.gone:
                raise WorkerGone(self.gone)
            self.changed.wait()

    def _give(self, worker: int, out: np.ndarray) -> None:
        if self.settings.mode == BOUNDED:
            own = int(self.clocks[worker])
            # Ho et al. 2013, section 2: the fastest and the slowest are no more than `staleness` steps apart.
            self.wait(lambda: bool(own - self.clocks.min() <= self.settings.staleness))
        self.lead = max(self.lead, int(self.clocks[worker] - self.clocks.min()))
        self.seen[worker] = self.updates
        self.given[worker] = self.updates - self.lost_updates
        np.copyto(out, self.weights)
        self._keep()

    def _keep(self) -> None:
        if self.shared is not None:
            self.shared.write([getattr(self, name) for name in OF_ALL], self.each.reshape(-1))

    def _remember(self) -> None:
        kept = self.shared.read() if self.shared is not None else None
        if kept is not None:
            for n, name in enumerate(OF_ALL):
                setattr(self, name, kept[n])
            self.each[:] = np.reshape(kept[len(OF_ALL) :], self.each.shape)

    def _apply_mean(self, gradients: Sequence[np.ndarray], rate: float) -> None:
        self._count(self.updates - int(self.seen.min()))
        # In the order of workers, whoever came first: the same sum to the last bit whenever it is repeated.
        np.copyto(self.mean, gradients[0])
        for gradient in gradients[1:]:
            self.mean += gradient
        self.mean /= len(gradients)
        self._step(self.mean, rate)

    def _step(self, gradient: np.ndarray, rate: float) -> None:
        """SGD as `Adapter.train` in harness/worker/adapter.py has it; the gradient stays as it is."""
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
    return len(OF_ALL) + (len(OF_EACH) + 1) * settings.workers


class _Meeting:
    """All workers bring something, and go on when all have come; what they brought is dealt with once."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self.brought: Dict[int, np.ndarray] = {}
        self.rate = 0.0
        self.number = 0

    def bring(
        self, worker: int, numbers: np.ndarray, rate: float, then: Callable[[List[np.ndarray], float], None]
    ) -> None:
        workers = self.parameters.settings.workers
        if self.brought and rate != self.rate:
            raise ValueError(f"worker {worker} gives the learning rate {rate}, another one {self.rate}")
        self.brought[worker], self.rate = numbers, rate
        if len(self.brought) == workers:
            then([self.brought[number] for number in range(workers)], rate)
            self.brought = {}
            self.number += 1
            self.parameters.changed.notify_all()
        else:
            number = self.number
            self.parameters.wait(lambda: self.number > number)
