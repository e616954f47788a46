"""What KVStore's servers do with what is pushed to them, where they make the updates. Sent to each as a pickle, as
KVStore sends its optimisers."""

from __future__ import annotations

import os
import traceback
from typing import Any, Dict, NamedTuple

import mxnet as mx

from harness.core.spec import OptimizerSpec
from harness.worker.mxnet.optimizer import Sgd


class Keys(NamedTuple):
    """Keys of KVStore, by what they are for. So far apart that a tensor's momentum, and its last gradient, are on the
    server that has its weights, in the same pieces: a key's server is key * 9973 modulo the number of servers, in
    integers of 32 bits (MXNet's EncodeDefaultKey)."""

    family: int

    @classmethod
    def on(cls, servers: int) -> Keys:
        return cls(servers * -(-10_000 // servers))

    def weight(self, number: int) -> int:
        return number

    def read_momentum(self, number: int) -> int:
        """A push, of whatever, puts the momentum of the tensor there."""
        return self.family + number

    def write_momentum(self, number: int) -> int:
        """The sum of what all workers push becomes the momentum."""
        return 2 * self.family + number

    def read_gradient(self, number: int) -> int:
        """A push, of whatever, puts the sum there that the last synchronous update was made with."""
        return 3 * self.family + number

    def sum(self, number: int) -> int:
        """The sum of what all workers push; KVStore has others before that."""
        return 4 * self.family + number

    @property
    def clock(self) -> int:
        """How many updates there were."""
        return 5 * self.family


class Rule(mx.optimizer.Optimizer):
    """workers: how many pushes there are for one step of all. synchronous: they come as one, as their sum. samples:
    that an update is made of. scale: of what comes, to be a mean. updates: that were made before, in a run that goes
    on."""

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
        """Momenta are asked for, and given back: this has them itself."""

    def update(self, index: int, weight: mx.nd.NDArray, grad: mx.nd.NDArray, state: Any) -> None:
        """`weight` is what the server holds under this key, `grad` what was pushed to it."""
        try:
            self._apply(index, weight, grad)
        except BaseException:
            # MXNet would go on as if nothing were wrong.
            traceback.print_exc()
            os._exit(1)

    def _apply(self, index: int, weight: mx.nd.NDArray, grad: mx.nd.NDArray) -> None:
        family, number = divmod(index, self.keys.family)
        # KVStore waits for `weight`, and then lets go of the memory of the message that `grad` is, or is still being
        # summed from: where `weight` is not made of `grad`, we wait for what reads it.
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
        rate = self.spec.learning_rate(self.samples, (self.before + self._counted(number)) // self.pushes)
        sgd.step([gradient], self.scale, rate)
        if self.synchronous:
            # The server's own buffer, which the next sum is made in. An asynchronous one is that of a message.
            self.gradients[number] = gradient

    def _sgd(self, number: int, like: mx.nd.NDArray) -> Sgd:
        if number not in self.steps:
            self.steps[number] = Sgd(self.spec, [like])
            # MXNet's momenta hold the learning rate: of those that come back from a checkpoint, that of its last step.
            if self.before:
                self.steps[number].learning_rate = self.spec.learning_rate(
                    self.samples, (self.before - 1) // self.pushes
                )
        return self.steps[number]

    def _add(self, index: int, to: mx.nd.NDArray, numbers: mx.nd.NDArray) -> None:
        """The first push of a round takes the place of what was there."""
        if self._counted(index) % self.pushes:
            to += numbers
        else:
            to[:] = numbers

    def _counted(self, index: int) -> int:
        """How often it was asked before."""
        count = self.count.get(index, 0)
        self.count[index] = count + 1
        return count
