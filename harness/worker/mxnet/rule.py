"""The update rule of KVStore's servers; sent to each as a pickle, like KVStore's optimisers."""

from __future__ import annotations

import os
import traceback
from typing import Any, Dict, NamedTuple

import mxnet as mx

from harness.core.spec import OptimizerSpec
from harness.worker.mxnet.optimizer import Sgd


class Keys(NamedTuple):
    """KVStore keys by purpose, spaced so that a tensor's momentum and last gradient are on the server of its weights,
    in the same pieces: the server is key * 9973 modulo the number of servers, in 32-bit integers (MXNet's
    EncodeDefaultKey)."""

    family: int

    @classmethod
    def on(cls, servers: int) -> Keys:
        return cls(servers * -(-10_000 // servers))

    def weight(self, number: int) -> int:
        return number

    def read_momentum(self, number: int) -> int:
        """Any push stores the tensor's momentum there."""
        return self.family + number

    def write_momentum(self, number: int) -> int:
        """The sum of all workers' pushes becomes the momentum."""
        return 2 * self.family + number

    def read_gradient(self, number: int) -> int:
        """Any push stores the summed gradient of the last synchronous update there."""
        return 3 * self.family + number

    def sum(self, number: int) -> int:
        """Holds the sum of all workers' pushes."""
        return 4 * self.family + number

    @property
    def clock(self) -> int:
        """Counts updates."""
        return 5 * self.family


class Rule(mx.optimizer.Optimizer):
    """The update rule on a server.

    workers: pushes per step of all workers. synchronous: they arrive as one sum. samples: per update. scale: makes
    means of what arrives. updates: number made before a resumed run.
    """

    def __init__(
        self, spec: OptimizerSpec, keys: Keys, workers: int, synchronous: bool, samples: int, scale: float, updates: int
    ) -> None:
        super().__init__()
        self.spec, self.keys = spec, keys
        self.pushes = 1 if synchronous else workers
        self.synchronous, self.samples, self.scale, self.before = synchronous, samples, scale, updates
        self.count: Dict[int, int] = {}
        self.steps: Dict[int, Sgd] = {}
        self.gradients: Dict[int, mx.nd.NDArray] = {}

    def create_state(self, index: int, weight: mx.nd.NDArray) -> None:
        """Nothing: this class holds the momenta itself."""

    def update(self, index: int, weight: mx.nd.NDArray, grad: mx.nd.NDArray, state: Any) -> None:
        """weight: the server's value under this key. grad: what was pushed."""
        try:
            self._apply(index, weight, grad)
        except BaseException:
            # MXNet would ignore the error.
            traceback.print_exc()
            os._exit(1)

    def _apply(self, index: int, weight: mx.nd.NDArray, grad: mx.nd.NDArray) -> None:
        family, number = divmod(index, self.keys.family)
        # KVStore waits for `weight` only, and then frees the message's memory, which `grad` may share or still be
        # summed from. If `weight` does not depend on `grad`, wait for its reader.
        grad.wait_to_read()
        if family == 0:
            self._step(number, weight, grad)
        elif family == 1:
            weight[:] = self._sgd(number, weight).momenta[0]
        elif family == 2:
            momentum = self._sgd(number, weight).momenta[0]
            self._add(index, momentum, grad)
            momentum.wait_to_read()
        elif family == 3:
            weight[:] = self.gradients[number]
        elif family == 4:
            self._add(index, weight, grad)
        else:
            weight += 1

    def _step(self, number: int, weight: mx.nd.NDArray, gradient: mx.nd.NDArray) -> None:
        sgd = self._sgd(number, weight)
        sgd.weights = [weight]
        rate = self.spec.learning_rate(self.samples, (self.before + self._count_call(number)) // self.pushes)
        sgd.step([gradient], self.scale, rate)
        if self.synchronous:
            # The server's buffer, reused for the next sum; that of an asynchronous update belongs to a message.
            self.gradients[number] = gradient

    def _sgd(self, number: int, like: mx.nd.NDArray) -> Sgd:
        if number not in self.steps:
            self.steps[number] = Sgd(self.spec, [like])
            # MXNet's momenta include the learning rate; for those of a checkpoint, that of its last step.
            if self.before:
                self.steps[number].learning_rate = self.spec.learning_rate(
                    self.samples, (self.before - 1) // self.pushes
                )
        return self.steps[number]

    def _add(self, index: int, to: mx.nd.NDArray, numbers: mx.nd.NDArray) -> None:
        """Add to the sum; the first push of a round replaces the previous sum."""
        if self._count_call(index) % self.pushes:
            to += numbers
        else:
            to[:] = numbers

    def _count_call(self, index: int) -> int:
        """Return the number of earlier calls for this key."""
        count = self.count.get(index, 0)
        self.count[index] = count + 1
        return count
