"""Dynamic loss scaling for precision=fp16: torch.amp.GradScaler's rule and defaults, the same in every framework.

The loss is multiplied by the scale, so that small gradients do not underflow in fp16. When all gradients, averaged over
the ranks, are finite, the optimizer steps with the gradients divided by the scale; otherwise the step is skipped, and
weights and momentum stay as they were. Frameworks state this rule in their own operations; `updated` is the reference
that tests compare them with.
"""

from __future__ import annotations

from typing import NamedTuple

INITIAL_SCALE = 2.0**16
GROWTH_FACTOR, BACKOFF_FACTOR = 2.0, 0.5
# Steps without overflow after which the scale grows.
GROWTH_INTERVAL = 2000
# The scale is a float32 on every device; it never grows past what that holds.
LARGEST_SCALE = 2.0**127


class LossScale(NamedTuple):
    """State between two steps; part of every checkpoint."""

    scale: float = INITIAL_SCALE
    good_steps: int = 0  # since the last overflow or growth


def updated(state: LossScale, finite: bool) -> LossScale:
    """After a step whose averaged gradients were all finite, or not."""
    if not finite:
        return LossScale(state.scale * BACKOFF_FACTOR, 0)
    good_steps = state.good_steps + 1
    if good_steps < GROWTH_INTERVAL:
        return LossScale(state.scale, good_steps)
    grown = state.scale * GROWTH_FACTOR
    return LossScale(grown if grown <= LARGEST_SCALE else state.scale, 0)
