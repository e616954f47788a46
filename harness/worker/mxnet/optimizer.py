"""SGD with PyTorch's formula (`Adapter.train` in harness/worker/adapter.py), by MXNet's kernels."""

from __future__ import annotations

from typing import List, Sequence

import mxnet as mx

from harness.core.spec import OptimizerSpec

# Arrays per call, the limit of MXNet's own optimisers; its kernels allow 60.
MOST_ARRAYS = 45
# On CPUs the kernels for several arrays interleave them element by element: faster for small arrays, where calls
# dominate, and twice as slow for large ones.
LARGEST_ON_CPU = 4096


class Sgd:
    """momenta: -lr * v, as MXNet includes the learning rate. learning_rate: of the last step."""

    def __init__(self, spec: OptimizerSpec, weights: Sequence[mx.nd.NDArray]) -> None:
        self.spec = spec
        self.weights = list(weights)
        self.momenta: List[mx.nd.NDArray] = [mx.nd.zeros_like(weight) for weight in weights]
        self.learning_rate = 0.0
        # Additional state for checkpoints.
        self.scaling: List[mx.nd.NDArray] = []
        self.groups = groups(weights)
        # NAG's kernel rereads the weight after writing it, so that in place it would decay by the new value.
        self.scratch = [mx.nd.zeros_like(weight) for weight in weights] if spec.nesterov else []

    def step(self, gradients: Sequence[mx.nd.NDArray], scale: float, learning_rate: float) -> None:
        """Take a step with `gradients` times `scale`."""
        # Goyal et al. 2017, section 3, "momentum correction": keep v, as PyTorch does.
        correction = learning_rate / self.learning_rate if self.learning_rate else 1.0
        self.learning_rate = learning_rate
        if self.spec.nesterov:
            self._nesterov(gradients, scale, correction)
            return
        options = {"momentum": self.spec.momentum * correction, "rescale_grad": scale}
        decay = self.spec.weight_decay
        for group in self.groups:
            weights = [self.weights[number] for number in group]
            arrays = [array for n in group for array in (self.weights[n], gradients[n], self.momenta[n])]
            if len(group) == 1:
                mx.nd.sgd_mom_update(*arrays, out=weights[0], lr=learning_rate, wd=decay, **options)
                continue
            count = len(group)
            rates = {"lrs": [learning_rate] * count, "wds": [decay] * count}
            mx.nd.multi_sgd_mom_update(*arrays, out=weights, num_weights=count, **rates, **options)

    def _nesterov(self, gradients: Sequence[mx.nd.NDArray], scale: float, correction: float) -> None:
        """MXNet has no Nesterov kernel for several arrays."""
        options = {
            "lr": self.learning_rate,
            "momentum": self.spec.momentum,
            "wd": self.spec.weight_decay,
            "rescale_grad": scale,
        }
        for weight, gradient, momentum, new in zip(self.weights, gradients, self.momenta, self.scratch):
            if correction != 1:
                momentum *= correction
            mx.nd.nag_mom_update(weight, gradient, momentum, out=new, **options)
            new.copyto(weight)


def groups(arrays: Sequence[mx.nd.NDArray]) -> List[List[int]]:
    """Return the arrays' numbers, grouped into calls by similar size, because the kernels iterate up to a group's
    largest array."""
    on_cpu = bool(arrays) and arrays[0].context.device_type == "cpu"
    by_size = sorted(range(len(arrays)), key=lambda number: arrays[number].size)
    together = [n for n in by_size if not on_cpu or arrays[n].size <= LARGEST_ON_CPU]
    found = [together[start : start + MOST_ARRAYS] for start in range(0, len(together), MOST_ARRAYS)]
    return found + [[number] for number in by_size[len(together) :]]
