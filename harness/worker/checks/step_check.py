"""verify=true: check that the first optimiser step follows the optimiser's formula.

Gradients can be right and equal on all ranks while the step applies them wrongly in the same way everywhere, e.g. a
fused kernel that pairs gradients with the wrong elements of a weight. So compare the weights after the first step with
a NumPy step from the weights before it and the step's gradients.
"""

from __future__ import annotations

from typing import Callable, List, Optional

import numpy as np

from harness.core.errors import RankError
from harness.core.events import EventWriter
from harness.core.optimizer_spec import OptimizerSpec
from harness.core.spec import EMULATED, RunSpec
from harness.core.strategies import info
from harness.worker.adapter import Adapter

# Norm of the difference relative to the distance that the weights moved. Rounding: below 1e-6. Permuted gradients: 0.5
# and more. Wrong momentum, weight decay or learning rate: 1e-1 and more.
BOUND = 1e-2
# Rounding of stored fp32 weights, relative to their norm.
ROUNDING = 1e-6


class StepError(RankError):
    """The first step differs from the optimiser's formula."""


def checked(step: Callable[[], None], spec: RunSpec, adapter: Adapter, log: EventWriter) -> Callable[[], None]:
    """Return `step`; its first call is checked and logged, and raises StepError on a difference."""
    first = True

    def checking() -> None:
        nonlocal first
        if not first:
            step()
            return
        first = False
        before = [weight.copy() for weight in adapter.weights()]  # a copy, since it may be the framework's memory
        step()
        adapter.fence()
        gradients, after = adapter.gradients(), adapter.weights()
        why = unchecked(spec) or _incomparable(before, gradients)
        difference = None if why else _difference(spec, before, gradients, after)
        log.write("first_step", difference=difference, bound=None if why else BOUND, unchecked=why)
        if difference is not None and not difference <= BOUND:
            raise StepError(
                f"verify=true: the weights after the first step deviate from optimizer.name={spec.optimizer.name} by "
                f"{difference:.1e} of the step's length (bound {BOUND:.0e}); report this as a bug, "
                "with the run's spec.json"
            )

    return checking


def unchecked(spec: RunSpec) -> Optional[str]:
    """Return why the step cannot be derived from gradients and weights; None if it can."""
    optimizer = spec.optimizer
    if spec.framework == EMULATED:
        return "framework=emulated trains nothing"
    if not info(spec.strategy).synchronous:
        return f"with strategy '{spec.strategy}' a step is not that of the mean of the gradients"
    if optimizer.norm_bias_factor != 1:
        return "optimizer.norm_bias_factor gives some weights steps of another size"
    if optimizer.lookahead_steps == 1:
        return "optimizer.lookahead_steps=1 moves the weights after the step"
    if spec.framework_options.get("half_weights"):
        return "weights in 16 bits round the step away"
    if optimizer.nesterov and not optimizer.weight_decay:
        # Without weight decay, torch's foreach SGD adds the momentum to the gradients in place.
        return "optimizer.nesterov=true without weight decay may change the gradients in the step"
    return None


def stepped(
    optimizer: OptimizerSpec, rate: float, weights: List[np.ndarray], gradients: List[np.ndarray]
) -> List[np.ndarray]:
    """Return the weights after the first step in double precision, by the formulas of OptimizerSpec."""
    return [
        _stepped(optimizer, rate, weight.astype(np.float64), gradient.astype(np.float64))
        for weight, gradient in zip(weights, gradients)
    ]


def _stepped(optimizer: OptimizerSpec, rate: float, weight: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    decayed = gradient + optimizer.weight_decay * weight
    if optimizer.name == "adam":  # the bias-corrected means equal this single gradient's values
        return np.asarray(weight - rate * decayed / (np.abs(decayed) + optimizer.epsilon))
    if optimizer.name == "lars":
        norm, of_gradient = np.linalg.norm(weight), np.linalg.norm(gradient)
        scaled = weight.ndim > 1 and norm > 0 and of_gradient > 0
        trust = optimizer.trust * norm / (of_gradient + optimizer.weight_decay * norm) if scaled else 1.0
        return np.asarray(weight - rate * trust * decayed)
    if optimizer.nesterov:
        return np.asarray(weight - rate * (1 + optimizer.momentum) * decayed)
    return np.asarray(weight - rate * decayed)


def _difference(spec: RunSpec, before: List[np.ndarray], gradients: List[np.ndarray], after: List[np.ndarray]) -> float:
    """Return the deviation relative to the expected step, less possible rounding."""
    rate = spec.optimizer.learning_rate(spec.global_batch, 0)
    expected = stepped(spec.optimizer, rate, before, gradients)
    difference = _norm([own - other for own, other in zip(after, expected)])
    moved = _norm([own - other for own, other in zip(expected, before)])
    left = max(0.0, difference - ROUNDING * _norm(before))
    return left / moved if moved else float(left > 0)


def _norm(arrays: List[np.ndarray]) -> float:
    return float(np.sqrt(sum(float((array.astype(np.float64) ** 2).sum()) for array in arrays)))


def _incomparable(weights: List[np.ndarray], gradients: List[np.ndarray]) -> Optional[str]:
    if [array.shape for array in weights] != [array.shape for array in gradients]:
        return "not every weight has a gradient"
    if not all(bool(np.isfinite(array).all()) for array in gradients):
        return "the first gradient is not finite"
    return None
