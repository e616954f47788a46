"""Dynamic loss scaling of precision=fp16 in TensorFlow and Keras (the rule: harness/worker/loss_scale.py).

Keras's own LossScaleOptimizer branches on the gradients, for which the host waits in each step. Here the device decides
by values: with an overflow, a step has a learning rate of 0, a momentum of 1 and gradients of 0.
"""

from __future__ import annotations

from typing import Dict, List, Tuple

import tensorflow as tf

from harness.worker import loss_scale


class LossScaling:
    """Its methods are called while a `tf.function` is traced, in a strategy's `replicas.run`.

    scale, good_steps: `LossScale` on the device; each rank has its own, and all take the same decisions.
    """

    def __init__(self) -> None:
        initial = loss_scale.LossScale()
        self.scale = tf.Variable(initial.scale, trainable=False, dtype=tf.float32)
        self.good_steps = tf.Variable(initial.good_steps, trainable=False, dtype=tf.int64)

    def scaled(self, loss: tf.Tensor) -> tf.Tensor:
        return loss * self.scale

    def decide(self, gradients: List[tf.Tensor]) -> None:
        """Whether the step counts. gradients: scaled, averaged over the ranks, so that all ranks decide alike."""
        # In one piece: some kernels in all, and not some for each gradient.
        together = tf.concat([tf.reshape(gradient, [-1]) for gradient in gradients], axis=0)
        self.finite = tf.reduce_all(tf.math.is_finite(together))
        scale = self.scale.read_value()
        self.unscale = tf.where(self.finite, 1 / scale, 0.0)
        good_steps = self.good_steps + 1
        due = good_steps >= loss_scale.GROWTH_INTERVAL
        grown = scale * loss_scale.GROWTH_FACTOR
        kept = tf.where(due & (grown <= loss_scale.LARGEST_SCALE), grown, scale)
        self.scale.assign(tf.where(self.finite, kept, scale * loss_scale.BACKOFF_FACTOR))
        self.good_steps.assign(tf.where(self.finite & ~due, good_steps, tf.zeros_like(good_steps)))

    def gradient(self, scaled: tf.Tensor) -> tf.Tensor:
        """Unscaled; zeros in a step that does not count, whatever overflowed."""
        return tf.math.multiply_no_nan(scaled, self.unscale)

    def settings(self, rate: tf.Tensor, momentum: float, decay: float) -> Tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Of the optimizer, for this step: with those of a step that does not count, nothing moves."""
        return (
            tf.where(self.finite, rate, tf.zeros_like(rate)),
            tf.where(self.finite, momentum, 1.0),
            tf.where(self.finite, decay, 0.0),
        )

    def state(self) -> Dict[str, tf.Variable]:
        return {"loss_scale": self.scale, "loss_scale_good_steps": self.good_steps}
