"""A figure of a section: a value, how sure it is, and the bound that it is held to. Standard library only."""

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
    """value: a number in `unit`, or a word; None where there should be a number and there is none, such as NaN.
    interval: of the value, at 95 %. n: samples behind it. bound: '≤ number', '≥ number', '= number' or '= word'; None:
    the figure is for information.
    """

    name: str
    value: float | str | None
    unit: str = ""
    interval: Interval | None = None
    n: int = 1
    bound: str | None = None

    @property
    def holds(self) -> bool | None:
        """True if the value is within its bound; None if it has no bound. A value with an interval fails only if the
        whole interval is out of bounds, so that noise alone does not fail a machine."""
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
        """As the JSON file has it. NaN and infinity are not JSON: they become null, which keeps to no bound."""
        return {
            "name": self.name,
            "value": _finite(self.value),
            "unit": self.unit,
            "interval": list(self.interval) if self.interval and all(map(math.isfinite, self.interval)) else None,
            "n": self.n,
            "bound": self.bound,
        }


def figure_of(plain: Mapping[str, Any]) -> Figure:
    """The figure that `Figure.plain` made."""
    interval = plain["interval"]
    return Figure(**{**plain, "interval": (interval[0], interval[1]) if interval else None})


def median(name: str, samples: Sequence[float], unit: str = "", bound: str | None = None) -> Figure:
    """The median of the samples, with its interval by the sign test."""
    return Figure(name, statistics.median(samples), unit, interval_of_median(samples), len(samples), bound)


def _finite(value: float | str | None) -> float | str | None:
    return None if isinstance(value, float) and not math.isfinite(value) else value
