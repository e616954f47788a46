"""Parameter servers hold the weights and the optimiser; ranks push gradients and receive weights.

The servers are this project's (harness/worker/servers). TensorFlow's ParameterServerStrategy has one coordinator that
assigns steps to workers; here every rank takes its own (docs/strategies.md).
"""

from __future__ import annotations

from typing import Dict, Sequence, Type

import numpy as np
import tensorflow as tf

from harness.core.strategies import served_by
from harness.worker.servers.ranks import ByHostRank
from harness.worker.tensorflow.strategies import Strategy


class ParameterServers(ByHostRank, Strategy):
    """Push all gradients as one row through host memory after backward, and receive all weights as one row."""

    def register_weights(self, variables: Sequence[tf.Variable]) -> None:
        order = self.ranks.order([variable.shape.num_elements() for variable in variables])
        # In the order of a row.
        self.variables = [variables[number] for number in order]
        self.ranks.register_weights([variable.numpy() for variable in variables])
        # Counts the workers of the servers.
        self.world_size = int(self.allreduce_sum(np.ones(1))[0])

    def server_step(self, gradients: Sequence[tf.Tensor], variables: Sequence[tf.Variable]) -> bool:
        by_variable = {id(variable): gradient for gradient, variable in zip(gradients, variables)}
        row = tf.concat([tf.reshape(by_variable[id(variable)], [-1]) for variable in self.variables], axis=0)
        answer = tf.ensure_shape(tf.numpy_function(self._step, [row], tf.float32), row.shape)
        parts = tf.split(answer, [variable.shape.num_elements() for variable in self.variables])
        for variable, part in zip(self.variables, parts):
            variable.assign(tf.reshape(part, variable.shape))
        return True

    def sum(self, tensor: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(tf.numpy_function(self.allreduce_sum, [tensor], tensor.dtype), tensor.shape)

    def _step(self, gradients: np.ndarray) -> np.ndarray:
        # Copy: TensorFlow owns its argument, and may keep the result.
        row = np.array(gradients)
        self.ranks.push(row, self.learning_rate)
        return row


STRATEGIES: Dict[str, Type[Strategy]] = dict.fromkeys(served_by("tensorflow"), ParameterServers)
