"""SGD as PyTorch has it (`Adapter.train` in harness/worker/adapter.py), for TensorFlow and Keras."""

from __future__ import annotations

import tensorflow as tf

from harness.spec import OptimizerSpec


class Sgd(tf.keras.optimizers.SGD):
    """Keras's own keeps the learning rate inside the velocity, and decays weights apart from it."""

    def __init__(self, spec: OptimizerSpec) -> None:
        super().__init__(momentum=spec.momentum, nesterov=spec.nesterov, jit_compile=False)
        self.decay = spec.weight_decay

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable) -> None:
        velocity = self.momentums[self._index_dict[self._var_key(variable)]]
        # One kernel: velocity = momentum * velocity + gradient; variable -= lr * velocity, or with nesterov
        # variable -= lr * (gradient + momentum * velocity).
        tf.raw_ops.ResourceApplyMomentum(
            var=variable.handle,
            accum=velocity.handle,
            lr=self.learning_rate,
            grad=gradient + self.decay * variable if self.decay else gradient,
            momentum=float(self.momentum),
            use_nesterov=self.nesterov,
        )
