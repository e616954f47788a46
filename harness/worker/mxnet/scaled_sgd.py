"""SGD for precision=fp16, with the loss scaling of harness/worker/loss_scale.py on the device, without waiting.

Whether a step is taken is a device number, 1 or 0, that multiplies all changes.
"""

from __future__ import annotations

from typing import Any, List, Sequence

import mxnet as mx
import numpy as np
from mxnet.ndarray.numpy import _internal as operators

from harness.core.spec import OptimizerSpec
from harness.worker import loss_scale
from harness.worker.loss_scale import LossScale
from harness.worker.mxnet.optimizer import groups


class ScaledSgd:
    """momenta: PyTorch's v. scale: factor of the next step's loss, an array of one number."""

    learning_rate = 0.0  # of the last step; only for MXNet's own momenta

    def __init__(self, spec: OptimizerSpec, weights: Sequence[mx.nd.NDArray]) -> None:
        self.spec, self.weights = spec, list(weights)
        self.momenta: List[mx.nd.NDArray] = [mx.nd.zeros_like(weight) for weight in weights]
        self.groups = groups(weights)
        context, start = weights[0].context, LossScale()
        self.scaling = [mx.nd.full(1, start.scale, context), mx.nd.full(1, start.good_steps, context)]
        ends = np.cumsum([weight.size for weight in weights]).tolist()
        self.flat = mx.nd.zeros(ends[-1], context)
        self.parts = [self.flat[a:b].reshape(w.shape) for a, b, w in zip([0, *ends[:-1]], ends, weights)]

    @property
    def scale(self) -> mx.nd.NDArray:
        return self.scaling[0]

    def step(self, gradients: Sequence[mx.nd.NDArray], mean: float, learning_rate: float) -> None:
        """gradients: sums over the ranks, times `scale`. mean: factor from sums to means."""
        momentum, decay, scale = self.spec.momentum, self.spec.weight_decay, self.scale
        mx.nd.concat(*[gradient.reshape(-1) for gradient in gradients], dim=0, out=self.flat)
        taken = mx.nd.all_finite(self.flat)
        flat = self.flat.as_np_ndarray()
        # Replace non-finite values, which zero times would not cancel.
        operators.where_rscalar(taken.as_np_ndarray(), flat, 0.0, out=flat)
        unscaled = taken / scale * mean
        # v = momentum * v + g + decay * w
        self._subtract(self.momenta, self.weights, -taken, momentum - 1, decay)
        self._subtract(self.momenta, self.parts, -unscaled)
        if self.spec.nesterov:
            # w -= lr * (g + decay * w), in units of the scaled gradients; then w -= lr * momentum * v
            self._subtract(self.weights, self.parts, unscaled * learning_rate, scale * (decay / mean))
            self._subtract(self.weights, self.momenta, taken * (learning_rate * momentum))
        else:
            self._subtract(self.weights, self.momenta, taken * learning_rate)
        self.scaling = _updated(self.scaling, taken)

    def _subtract(
        self, arrays: List[mx.nd.NDArray], others: List[mx.nd.NDArray], rate: Any, own: Any = 0.0, other: float = 1.0
    ) -> None:
        """array -= rate * (own * array + other * other array), for all arrays. rate, own: on the device."""
        for group in self.groups:
            count = len(group)
            pairs = [array for number in group for array in (arrays[number], others[number])]
            same = (rate.broadcast_to((count,)), mx.nd.ones(count, rate.context) * own)
            out = [arrays[number] for number in group]
            mx.nd.preloaded_multi_sgd_update(*pairs, *same, out=out, num_weights=count, rescale_grad=other)


def _updated(scaling: Sequence[mx.nd.NDArray], finite: mx.nd.NDArray) -> List[mx.nd.NDArray]:
    """`loss_scale.updated` on the device. finite: 1 or 0."""
    scale, good = scaling[0], scaling[1] + 1
    grows = good >= loss_scale.GROWTH_INTERVAL
    factor = mx.nd.where(finite, 1 + grows * (loss_scale.GROWTH_FACTOR - 1), finite + loss_scale.BACKOFF_FACTOR)
    return [mx.nd.minimum(scale * factor, loss_scale.LARGEST_SCALE), good * finite * (1 - grows)]
