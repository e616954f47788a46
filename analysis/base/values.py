"""Values of files, checked: a count, a number, seconds, or nothing; a file may hold anything."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

LARGEST_COUNT = 2**63 - 1  # what a column of whole numbers holds
# A duration beyond this is damage, not a measurement; within it, sums and ratios of durations stay finite.
LONGEST_SECONDS = 1e12


class Columns(Protocol):
    """An object with named columns: a run, or a row of a table."""

    def __getitem__(self, column: str, /) -> Any: ...


def is_count(value: Any, minimum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= LARGEST_COUNT


def count_of(record: Mapping[str, Any], key: str, minimum: int) -> int | None:
    value = record.get(key)
    return value if is_count(value, minimum) else None


def number_of(record: Mapping[str, Any], key: str, minimum: float = 0.0) -> float | None:
    """A finite number from `minimum` on, or None: JSON readers take NaN, infinities and 400-digit integers too."""
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        value = float(value)
    except OverflowError:
        return None
    return value if minimum <= value < math.inf and value > -math.inf else None


def seconds_of(record: Mapping[str, Any], key: str) -> float | None:
    """A duration, or None where the value is none that a run could have taken."""
    seconds = number_of(record, key)
    return seconds if seconds is not None and seconds <= LONGEST_SECONDS else None
