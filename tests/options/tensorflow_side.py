"""The options matrix: the reference in TensorFlow, also for Keras (see train_side.py).

Gradients come from a tape in a graph; the optimiser's step, the mean over the replicas and loss scaling are NumPy.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Iterator, List, Sequence, Tuple

import numpy as np
import tensorflow as tf

from harness.core.spec import RunSpec
from harness.worker.loss_scale import LossScale, updated
from models import catalog
from models import tensorflow as networks

Batch = Tuple[np.ndarray, np.ndarray]
# sum: sum instead of mean of the replicas' gradients. alone: only the first replica's gradients. momentum: 0.8 of the
# correct value. rate: learning rate 10 % too large. late: the first step is skipped.
DEFECTS = ("sum", "alone", "momentum", "rate", "late")
# MultiWorkerMirroredStrategy finds its ranks when TensorFlow starts.
ONCE = ("allreduce",)
STEPS = 8
POLICIES = {"bf16": "mixed_bfloat16", "fp16": "mixed_float16"}


def reference(spec: RunSpec, batches: Callable[[int], Iterator[Batch]], defect: str = "") -> List[np.ndarray]:
    replicas = [batches(replica) for replica in range(spec.replicas)]
    learner = Learner(spec, defect)
    if spec.strategy in ("ps_async", "ssp"):
        _in_turns(learner, replicas)
    else:
        for step in range(STEPS):
            learner.update(step, learner.gradients([next(own) for own in replicas]))
    return [networks.from_own_layout(weight) for weight in learner.weights]


class Traced:
    """A network and the graph of its gradients. Set the weights before each call."""

    def __init__(self, model: str, channels: int, classes: int, image_size: int, seed: int, precision: str) -> None:
        layers = catalog.network(model).layers(channels, classes, image_size)
        tf.keras.mixed_precision.set_global_policy(POLICIES.get(precision, "float32"))
        self.network = networks.build(layers, seed, channels, image_size)
        self.variables = networks.parameters(self.network)
        self.start = [variable.numpy() for variable in self.variables]
        self.gradients = tf.function(self._gradients, autograph=False)

    def _gradients(self, images: tf.Tensor, labels: tf.Tensor, scale: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            logits = self.network(images, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, tf.cast(logits, tf.float32))
            loss = tf.reduce_mean(losses) * scale
        return tape.gradient(loss, self.variables)


# Traced once for all runs.
traced = functools.lru_cache(maxsize=None)(Traced)


class Learner:
    """weights: NumPy, in TensorFlow's layout."""

    def __init__(self, spec: RunSpec, defect: str) -> None:
        self.spec, self.defect = spec, defect
        data = spec.dataset
        # As many as the ranks have: the order of summation in kernels depends on the number of threads.
        tf.config.threading.set_intra_op_parallelism_threads(spec.cluster.cpus_per_gpu)
        of = (spec.model, data.channels, data.classes, data.image_size, spec.seed, spec.precision)
        self.traced = traced(*of)
        self.weights = [weight.copy() for weight in self.traced.start]
        self.velocity = [np.zeros_like(weight) for weight in self.weights]
        self.scale = LossScale() if spec.precision == "fp16" else LossScale(1.0)

    def gradients(self, batches: Sequence[Batch]) -> List[np.ndarray]:
        """Return the mean of the gradients over these batches, scaled."""
        batches = batches[:1] if self.defect == "alone" else batches
        for variable, weight in zip(self.traced.variables, self.weights):
            variable.assign(weight)
        # With Horovod's compression scaled gradients overflow fp16, and the step is skipped.
        kind = np.float16 if self.spec.strategy_options.get("compress") == "fp16" else np.float32
        with np.errstate(over="ignore", invalid="ignore"):
            parts = zip(*([g.astype(kind) for g in self._gradients(batch)] for batch in batches))
            totals = [np.sum(of_one, axis=0).astype(np.float32) for of_one in parts]
        return [total / (1 if self.defect == "sum" else len(batches)) for total in totals]

    def update(self, step: int, gradients: Sequence[np.ndarray], factor: float = 1.0) -> None:
        """Take a step. factor: of the learning rate."""
        optimizer = self.spec.optimizer
        rate = factor * optimizer.learning_rate(self.spec.global_batch, step) * (1.1 if self.defect == "rate" else 1.0)
        momentum = optimizer.momentum * (0.8 if self.defect == "momentum" else 1.0)
        if self.defect == "late" and step == 0:
            return
        finite = all(np.isfinite(gradient).all() for gradient in gradients)
        scale = self.scale.scale
        if self.spec.precision == "fp16":
            self.scale = updated(self.scale, finite)
        if not finite:
            return
        for weight, velocity, gradient in zip(self.weights, self.velocity, gradients):
            gradient = gradient / scale + optimizer.weight_decay * weight
            velocity[...] = momentum * velocity + gradient
            weight -= rate * (gradient + momentum * velocity if optimizer.nesterov else velocity)

    def _gradients(self, batch: Batch) -> List[np.ndarray]:
        data, (images, labels) = self.spec.dataset, batch
        mean, std = (np.array(values, np.float32) * 255 for values in (data.mean, data.std))
        pixels = tf.constant((images.astype(np.float32) - mean) / std)
        gradients = self.traced.gradients(pixels, tf.constant(labels), tf.constant(self.scale.scale, tf.float32))
        return [gradient.numpy() for gradient in gradients]


def _in_turns(server: Learner, replicas: Sequence[Iterator[Batch]]) -> None:
    """Train with asynchronous servers whose workers push in turns, each from the weights of its last turn."""
    held: List[Any] = [[weight.copy() for weight in server.weights] for _ in replicas]
    optimizer, own = server.spec.optimizer, server.spec.batch_per_gpu
    for step in range(STEPS):
        for number, batches in enumerate(replicas):
            current, server.weights = server.weights, held[number]
            gradients = server.gradients([next(batches)])
            server.weights = current
            server.update(step, gradients, optimizer.scaled(own) / optimizer.scaled(server.spec.global_batch))
            held[number] = [weight.copy() for weight in server.weights]
