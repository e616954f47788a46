"""SGD with PyTorch's formula (`Adapter.train` in harness/worker/adapter.py) for TensorFlow and Keras."""

from __future__ import annotations

from typing import Any, Optional

import tensorflow as tf

from harness.core.spec import OptimizerSpec
from harness.worker.tensorflow.loss_scale import LossScaling


class Sgd(tf.keras.optimizers.SGD):
    """SGD that unlike Keras's keeps the learning rate out of the velocity and the weight decay in it.

    scaling: scales the gradients, and decides on the step before `apply_gradients`.
    """

    def __init__(self, spec: OptimizerSpec, scaling: Optional[LossScaling] = None) -> None:
        super().__init__(momentum=spec.momentum, nesterov=spec.nesterov, jit_compile=False)
        self.decay, self.scaling = spec.weight_decay, scaling

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable) -> None:
        velocity = self.momentums[self._index_dict[self._var_key(variable)]]
        rate: Any = self.learning_rate
        momentum: Any = float(self.momentum)
        decay: Any = self.decay
        if self.scaling:
            gradient = self.scaling.gradient(gradient)
            rate, momentum, decay = self.scaling.settings(tf.convert_to_tensor(rate), momentum, decay)
        # One kernel: velocity = momentum * velocity + gradient; variable -= lr * velocity, or with Nesterov variable -=
        # lr * (gradient + momentum * velocity).
        tf.raw_ops.ResourceApplyMomentum(
            var=variable.handle,
            accum=velocity.handle,
            lr=rate,
            grad=gradient + decay * variable if self.decay else gradient,
            momentum=momentum,
            use_nesterov=self.nesterov,
        )
