"""Dynamic loss scaling for precision=fp16, with torch.amp.GradScaler's rule and defaults in every framework.

The loss is multiplied by the scale so that small gradients do not underflow in fp16. If all gradients, averaged over
the ranks, are finite, the optimiser steps with the gradients divided by the scale; otherwise the step is skipped. Each
framework implements the rule in its own operations; tests compare them with `updated`.
"""

from __future__ import annotations

from typing import NamedTuple

INITIAL_SCALE = 2.0**16
GROWTH_FACTOR, BACKOFF_FACTOR = 2.0, 0.5
# Steps without overflow before the scale grows.
GROWTH_INTERVAL = 2000
# The largest power of two in float32, the type of the scale on every device.
LARGEST_SCALE = 2.0**127


class LossScale(NamedTuple):
    """State between two steps; saved in checkpoints."""

    scale: float = INITIAL_SCALE
    good_steps: int = 0  # since the last overflow or growth


def updated(state: LossScale, finite: bool) -> LossScale:
    """Return the state after a step whose averaged gradients were finite, or not."""
    if not finite:
        return LossScale(state.scale * BACKOFF_FACTOR, 0)
    good_steps = state.good_steps + 1
    if good_steps < GROWTH_INTERVAL:
        return LossScale(state.scale, good_steps)
    grown = state.scale * GROWTH_FACTOR
    return LossScale(grown if grown <= LARGEST_SCALE else state.scale, 0)
