"""Sums, ratios and common values of figures that may be missing or zero."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def total_if_known(parts: Iterable[float | None]) -> float | None:
    """Return the sum, or None if a part is unknown."""
    values = list(parts)
    known = [value for value in values if value is not None]
    return math.fsum(known) if len(known) == len(values) else None


def common(values: Iterable[T]) -> T | None:
    """Return the value that all have, or None."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def relative(difference: float, scale: float) -> float:
    """Return difference / scale; infinite if only the scale is zero, 0 if both are."""
    if not scale:
        return math.inf if difference else 0.0
    return difference / scale
