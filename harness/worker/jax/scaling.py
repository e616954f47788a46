"""The loss scaling of harness/worker/loss_scale.py in JAX, within the jitted step, without waiting for the host.

Gradients are divided by the scale, a power of two, in single precision right after backward. So ranks exchange values
of normal size, and an overflow on one rank makes the mean infinite or NaN on all.
"""

from __future__ import annotations

from typing import Any, Tuple, Union

import jax
import jax.numpy as jnp
import numpy as np

from harness.core.spec import RunSpec
from harness.worker import loss_scale
from harness.worker.loss_scale import LossScale

# Of arrays; empty if the loss is not scaled.
Scaling = Union[LossScale, Tuple[()]]


def fresh(spec: RunSpec) -> Scaling:
    if spec.precision != "fp16":
        return ()
    start = LossScale()
    return LossScale(np.float32(start.scale), np.int32(start.good_steps))  # type: ignore[arg-type]


def scaled(loss: Any, known: Scaling) -> Any:
    return loss * known.scale if known else loss


def unscaled(gradients: Any, known: Scaling) -> Any:
    return jax.tree.map(lambda gradient: gradient / known.scale, gradients) if known else gradients


def skipped(before: Scaling, after: Scaling) -> bool:
    """Return True if the step between them was skipped, since a gradient was not finite."""
    return bool(before) and bool(after.scale < before.scale)  # type: ignore[union-attr]


def applied(old: Any, new: Any, gradients: Any, known: Scaling) -> Tuple[Any, Scaling]:
    """Return the optimiser's state after a step and the next scale; `old` if a gradient is not finite.

    gradients: means over the ranks, so that all ranks agree.
    """
    if not known:
        return new, known
    finite = jnp.stack([jnp.isfinite(gradient).all() for gradient in gradients]).all()
    kept = jax.tree.map(lambda before, after: jnp.where(finite, after, before), old, new)
    good = known.good_steps + 1
    grows = good >= loss_scale.GROWTH_INTERVAL
    larger = jnp.minimum(known.scale * loss_scale.GROWTH_FACTOR, loss_scale.LARGEST_SCALE)
    scale = jnp.where(finite, jnp.where(grows, larger, known.scale), known.scale * loss_scale.BACKOFF_FACTOR)
    return kept, LossScale(scale, jnp.where(finite & ~grows, good, 0))
