"""A Keras training step: the `train_step` of a compiled model, which `fit` runs for each batch."""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

import tensorflow as tf

from harness.core.spec import OptimizerSpec
from harness.worker.tensorflow.loss_scale import LossScaling
from harness.worker.tensorflow.optimizer import Sgd
from harness.worker.tensorflow.replica import Replica

Exchange = Callable[[List[tf.Tensor]], List[tf.Tensor]]
Update = Callable[[List[tf.Tensor], List[tf.Variable]], bool]


class Adapter(Replica):
    def make_optimizer(self) -> Sgd:
        return ExchangingSgd(self.spec.optimizer, self.scaling, self._exchange, self._update)

    def prepare(self) -> None:
        self.model = Model(self.network.inputs, self.network.outputs)
        self.model.compile(self.optimizer, tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True))

    def training_step(self, images: tf.Tensor, labels: tf.Tensor, synchronise: bool) -> Any:
        self.model.synchronise = synchronise
        compiled = self.spec.framework_options["jit_compile"]
        step = tf.function(self._step, autograph=False, jit_compile=True) if compiled else self._step
        return step(images, labels)

    def _step(self, images: tf.Tensor, labels: tf.Tensor) -> Tuple[tf.Tensor, Any]:
        self.model.train_step((images, labels))
        order = {id(variable): number for number, variable in enumerate(self.model.trainable_variables)}
        return self.model.rank_loss, [self.exchanged[order[id(variable)]] for variable in self.parameters]

    def _exchange(self, gradients: List[tf.Tensor]) -> List[tf.Tensor]:
        # Called only if `_update` did not step.
        if self.model.synchronise:
            gradients = self.strategy.sync_gradients(gradients)
        if self.scaling:
            self.scaling.decide(gradients)
        self.exchanged = gradients
        return self.exchanged

    def _update(self, gradients: List[tf.Tensor], variables: List[tf.Variable]) -> bool:
        self.exchanged = gradients
        return self.model.synchronise and self.strategy.server_step(gradients, variables)


class ExchangingSgd(Sgd):
    """Exchange gradients where Keras's optimisers aggregate them.

    update: returns True if servers took the step instead.
    """

    def __init__(self, spec: OptimizerSpec, scaling: Optional[LossScaling], exchange: Exchange, update: Update) -> None:
        super().__init__(spec, scaling)
        self.exchange, self.update = exchange, update

    def compute_gradients(self, loss: tf.Tensor, var_list: List[tf.Variable], tape: Any = None) -> Any:
        if self.scaling:
            with tape:
                loss = self.scaling.scaled(loss)
        return super().compute_gradients(loss, var_list, tape)

    def apply_gradients(self, grads_and_vars: Iterable[Tuple[tf.Tensor, tf.Variable]], *rest: Any, **named: Any) -> Any:
        pairs = list(grads_and_vars)
        gradients, variables = zip(*pairs)
        if self.update(list(gradients), list(variables)):
            return self.iterations
        return super().apply_gradients(pairs, *rest, **named)

    def aggregate_gradients(self, grads_and_vars: Iterable[Tuple[tf.Tensor, tf.Variable]]) -> Any:
        gradients, variables = zip(*grads_and_vars)
        return list(zip(self.exchange(list(gradients)), variables))


class Model(tf.keras.Model):
    synchronise = True

    def compute_loss(self, *arguments: Any, **keywords: Any) -> tf.Tensor:
        """Return the mean over the rank's batch. Keras divides it by the number of replicas because it sums gradients;
        here the strategy averages them."""
        loss = super().compute_loss(*arguments, **keywords)
        self.rank_loss = loss * tf.distribute.get_strategy().num_replicas_in_sync
        return self.rank_loss

    def compute_metrics(self, *arguments: Any, **keywords: Any) -> Dict[str, Any]:
        """Skip the metrics of unsynchronised steps: Keras sums them over the replicas of
        MultiWorkerMirroredStrategy."""
        return super().compute_metrics(*arguments, **keywords) if self.synchronise else {}
