"""SGD as PyTorch has it (`Adapter.train` in harness/worker/adapter.py), by MXNet's own kernels."""

from __future__ import annotations

from typing import List, Sequence

import mxnet as mx

from harness.spec import OptimizerSpec


class Sgd:
    """momenta: MXNet keeps the learning rate inside them, they are -lr * v. learning_rate: that of the last step."""

    def __init__(self, spec: OptimizerSpec, weights: Sequence[mx.nd.NDArray]) -> None:
        self.spec = spec
        self.weights = list(weights)
        self.momenta: List[mx.nd.NDArray] = [mx.nd.zeros_like(weight) for weight in weights]
        self.learning_rate = 0.0
        # NAG's kernel reads the weight once more after it wrote it: in place, it would decay by the new one.
        self.scratch = [mx.nd.zeros_like(weight) for weight in weights] if spec.nesterov else []

    def step(self, gradients: Sequence[mx.nd.NDArray], scale: float, learning_rate: float) -> None:
        """Of `gradients` times `scale`."""
        if learning_rate != self.learning_rate and self.learning_rate:
            # Goyal et al. 2017, section 3, "momentum correction": v stays what it was, and the form is PyTorch's.
            for momentum in self.momenta:
                momentum *= learning_rate / self.learning_rate
        self.learning_rate = learning_rate
        options = {
            "lr": learning_rate,
            "momentum": self.spec.momentum,
            "wd": self.spec.weight_decay,
            "rescale_grad": scale,
        }
        # One by one: MXNet's updates of several arrays in one call take twice as long for large ones on a CPU.
        if self.spec.nesterov:
            for weight, gradient, momentum, new in zip(self.weights, gradients, self.momenta, self.scratch):
                mx.nd.nag_mom_update(weight, gradient, momentum, out=new, **options)
                new.copyto(weight)
        else:
            for weight, gradient, momentum in zip(self.weights, gradients, self.momenta):
                mx.nd.sgd_mom_update(weight, gradient, momentum, out=weight, **options)
