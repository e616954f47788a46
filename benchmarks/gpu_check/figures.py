"""A section's result: a value, its uncertainty and its bound. Standard library only."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.common import interval_of_median

Interval = tuple[float, float]


@dataclass(frozen=True)
class Figure:
    """One result.

    Attributes:
        value: a number in `unit`, or a word; None if the number is missing, such as NaN.
        interval: 95 % confidence interval of the value.
        n: number of samples.
        bound: '≤ number', '≥ number', '= number' or '= word'; None: informative only.
    """

    name: str
    value: float | str | None
    unit: str = ""
    interval: Interval | None = None
    n: int = 1
    bound: str | None = None

    @property
    def holds(self) -> bool | None:
        """Whether the value is within its bound; None without a bound.

        A value with an interval fails only if the whole interval is out of bounds, so noise does not fail a machine.
        """
        if self.bound is None:
            return None
        if self.value is None:
            return False
        relation, _, wanted = self.bound.partition(" ")
        if relation == "=":
            return self.value == wanted if isinstance(self.value, str) else self.value == float(wanted)
        if isinstance(self.value, str):
            return False
        low, high = self.interval or (self.value, self.value)
        return low <= float(wanted) if relation == "≤" else high >= float(wanted)

    def plain(self) -> dict[str, Any]:
        """The JSON form. NaN and infinity become null, which violates any bound."""
        return {
            "name": self.name,
            "value": _finite(self.value),
            "unit": self.unit,
            "interval": list(self.interval) if self.interval and all(map(math.isfinite, self.interval)) else None,
            "n": self.n,
            "bound": self.bound,
        }


def figure_of(plain: Mapping[str, Any]) -> Figure:
    """Inverse of `Figure.plain`."""
    interval = plain["interval"]
    return Figure(**{**plain, "interval": (interval[0], interval[1]) if interval else None})


def median(name: str, samples: Sequence[float], unit: str = "", bound: str | None = None) -> Figure:
    """The median of the samples with its sign-test interval."""
    return Figure(name, statistics.median(samples), unit, interval_of_median(samples), len(samples), bound)


def _finite(value: float | str | None) -> float | str | None:
    return None if isinstance(value, float) and not math.isfinite(value) else value
