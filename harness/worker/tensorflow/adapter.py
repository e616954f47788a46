"""A TensorFlow training step: a gradient tape in a `tf.function`."""

from __future__ import annotations

from typing import Any, Tuple

import tensorflow as tf

from harness.worker.tensorflow.replica import Replica


class Adapter(Replica):
    def prepare(self) -> None:
        # Excludes communication, which XLA does not support in every strategy.
        self.backward = tf.function(
            self._backward, autograph=False, jit_compile=self.spec.framework_options["jit_compile"]
        )

    def training_step(self, images: tf.Tensor, labels: tf.Tensor, synchronise: bool) -> Any:
        loss, gradients = self.backward(images, labels)
        if synchronise:
            if self.strategy.server_step(gradients, self.parameters):
                return loss, gradients
            gradients = self.strategy.sync_gradients(gradients)
        if self.scaling:
            self.scaling.decide(gradients)
        self.optimizer.apply_gradients(zip(gradients, self.parameters), skip_gradients_aggregation=True)
        return loss, gradients

    def _backward(self, images: tf.Tensor, labels: tf.Tensor) -> Tuple[tf.Tensor, Any]:
        with tf.GradientTape() as tape:
            logits = self.network(images, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(losses)
            scaled = self.scaling.scaled(loss) if self.scaling else loss
        return loss, tape.gradient(scaled, self.parameters)
