"""Dynamic loss scaling of precision=fp16 in TensorFlow and Keras; see harness/worker/loss_scale.py for the rule.

Keras's LossScaleOptimizer branches on the gradients, so that the host waits in each step. Here the device selects
values: after an overflow the step uses learning rate 0, momentum 1 and zero gradients.
"""

from __future__ import annotations

from typing import Dict, List, Tuple

import tensorflow as tf

from harness.worker import loss_scale


class LossScaling:
    """Methods are called while a `tf.function` is traced, in a strategy's `replicas.run`.

    scale, good_steps: `LossScale` on the device, kept by each rank and equal on all.
    """

    def __init__(self) -> None:
        initial = loss_scale.LossScale()
        self.scale = tf.Variable(initial.scale, trainable=False, dtype=tf.float32)
        self.good_steps = tf.Variable(initial.good_steps, trainable=False, dtype=tf.int64)

    def scaled(self, loss: tf.Tensor) -> tf.Tensor:
        return loss * self.scale

    def decide(self, gradients: List[tf.Tensor]) -> None:
        """Decide whether the step counts. gradients: scaled and averaged over the ranks, so that all ranks agree."""
        # One concatenation, instead of several kernels per gradient.
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
        """Return the unscaled gradient; zeros in a skipped step, even after an overflow."""
        return tf.math.multiply_no_nan(scaled, self.unscale)

    def settings(self, rate: tf.Tensor, momentum: float, decay: float) -> Tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return (rate, momentum, decay) for this step; in a skipped step, values that change nothing."""
        return (
            tf.where(self.finite, rate, tf.zeros_like(rate)),
            tf.where(self.finite, momentum, 1.0),
            tf.where(self.finite, decay, 0.0),
        )

    def state(self) -> Dict[str, tf.Variable]:
        return {"loss_scale": self.scale, "loss_scale_good_steps": self.good_steps}
