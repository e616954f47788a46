"""Sums and ratios of figures that may be absent or nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable


def total_if_known(parts: Iterable[float | None]) -> float | None:
    """The sum, or None where a part of it is not known: it is not guessed."""
    values = list(parts)
    known = [value for value in values if value is not None]
    return math.fsum(known) if len(known) == len(values) else None


def relative(difference: float, scale: float) -> float:
    """The difference by what it is a part of; infinite where that is nothing, and the difference is not."""
    if not scale:
        return math.inf if difference else 0.0
    return difference / scale
