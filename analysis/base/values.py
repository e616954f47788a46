"""Validates values read from files, which may contain anything: a count, a number, seconds, or None."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

LARGEST_COUNT = 2**63 - 1  # limit of an integer column
# A duration beyond this is damage, not a measurement; within it, sums and ratios of durations stay finite.
LONGEST_SECONDS = 1e12
# The same limit for energy: the largest machines would take a thousand years to use it.
MOST_JOULES = 1e18


class Columns(Protocol):
    """An object with named columns: a run, or a row of a table."""

    def __getitem__(self, column: str, /) -> Any: ...


def is_count(value: Any, minimum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= LARGEST_COUNT


def count_of(record: Mapping[str, Any], key: str, minimum: int) -> int | None:
    value = record.get(key)
    return value if is_count(value, minimum) else None


def number_of(record: Mapping[str, Any], key: str, minimum: float = 0.0) -> float | None:
    """Return a finite number of at least `minimum`, or None; JSON readers accept NaN, infinities and huge integers."""
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        value = float(value)
    except OverflowError:
        return None
    return value if minimum <= value < math.inf and value > -math.inf else None


def seconds_of(record: Mapping[str, Any], key: str) -> float | None:
    """Return a duration in seconds, or None if the value is implausible."""
    seconds = number_of(record, key)
    return seconds if seconds is not None and seconds <= LONGEST_SECONDS else None


def joules_of(record: Mapping[str, Any], key: str) -> float | None:
    """Return an energy in joules, or None if the value is implausible."""
    joules = number_of(record, key)
    return joules if joules is not None and joules <= MOST_JOULES else None
