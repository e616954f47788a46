"""The options matrix: references in NumPy, which use a framework only for the gradients of a batch."""

from __future__ import annotations

from typing import Callable, Iterator, List, Sequence, Tuple

import numpy as np

from harness.core.spec import RunSpec
from harness.worker.loss_scale import LossScale, updated

Arrays = List[np.ndarray]
Batch = Tuple[np.ndarray, np.ndarray]
# (weights, batch, scale of the loss) -> gradients of the mean loss times the scale; in the layout of `models.initial`
Gradients = Callable[[Arrays, Batch, float], Arrays]
# sum: sum instead of mean of the replicas' gradients. alone: only the first replica's gradients. momentum: 0.8 of the
# correct value. rate: learning rate 10 % too large. late: the first step is skipped.
DEFECTS = ("sum", "alone", "momentum", "rate", "late")
STEPS = 8


def trained(
    spec: RunSpec, weights: Arrays, gradients: Gradients, batches: Callable[[int], Iterator[Batch]], defect: str
) -> Arrays:
    """Return the trained weights. weights: initial ones; other arguments as in `reference` (train_side.py)."""
    replicas = [batches(replica) for replica in range(spec.replicas)]
    sgd = Sgd(spec, weights, gradients, defect)
    if spec.strategy in ("ps_async", "ssp"):
        _in_turns(sgd, replicas)
    else:
        for step in range(STEPS):
            sgd.update(step, sgd.mean([next(own) for own in replicas]))
    return [weight.astype(np.float32) for weight in sgd.weights]


class Sgd:
    def __init__(self, spec: RunSpec, weights: Arrays, gradients: Gradients, defect: str) -> None:
        self.spec, self.gradients, self.defect = spec, gradients, defect
        self.weights = [weight.astype(np.float64) for weight in weights]
        self.velocity = [np.zeros_like(weight) for weight in self.weights]
        self.scale = LossScale() if spec.precision == "fp16" else LossScale(1.0)

    def mean(self, batches: Sequence[Batch]) -> Arrays:
        """Return the mean of the gradients over these batches."""
        batches = batches[:1] if self.defect == "alone" else batches
        narrow = [weight.astype(np.float32) for weight in self.weights]
        found = [self.gradients(narrow, batch, self.scale.scale) for batch in batches]
        count = 1 if self.defect == "sum" else len(batches)
        return [np.sum(same, axis=0, dtype=np.float64) / self.scale.scale / count for same in zip(*found)]

    def update(self, step: int, gradients: Arrays, factor: float = 1.0) -> None:
        """Take a step. factor: of the learning rate."""
        optimizer = self.spec.optimizer
        if self.defect == "late" and step == 0:
            return
        finite = all(np.isfinite(gradient).all() for gradient in gradients)
        if self.spec.precision == "fp16":
            self.scale = updated(self.scale, finite)
        if not finite:
            return
        rate = factor * optimizer.learning_rate(self.spec.global_batch, step) * (1.1 if self.defect == "rate" else 1.0)
        momentum = optimizer.momentum * (0.8 if self.defect == "momentum" else 1.0)
        for weight, velocity, gradient in zip(self.weights, self.velocity, gradients):
            gradient = gradient + optimizer.weight_decay * weight
            velocity[...] = momentum * velocity + gradient
            weight -= rate * (gradient + momentum * velocity if optimizer.nesterov else velocity)


def _in_turns(server: Sgd, replicas: Sequence[Iterator[Batch]]) -> None:
    """Train with asynchronous servers whose workers push in turns, each from the weights of its last turn."""
    held = [[weight.copy() for weight in server.weights] for _ in replicas]
    optimizer, own = server.spec.optimizer, server.spec.batch_per_gpu
    factor = optimizer.scaled(own) / optimizer.scaled(server.spec.global_batch)
    for step in range(STEPS):
        for number, batches in enumerate(replicas):
            current, server.weights = server.weights, held[number]
            gradients = server.mean([next(batches)])
            server.weights = current
            server.update(step, gradients, factor)
            held[number] = [weight.copy() for weight in server.weights]
