"""The interval type: a figure, the ends of its interval, and what they come from or why there are none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import NamedTuple


class Missing(NamedTuple):
    """Why an estimate has no interval."""

    runs: int
    blocks: int | None = None  # of a single run, if they are too few; None: all values are equal to rounding


class Interval(NamedTuple):
    """An estimate with its interval: 95 % confidence, the range of several values, or a prediction interval."""

    estimate: float
    low: float | None = None  # None: no interval
    high: float | None = None
    basis: tuple[int, ...] = ()  # number of runs of each estimate in it; 1: a single run with its blocks or rounds
    reason: tuple[Missing, ...] = ()  # why there is no interval

    @property
    def ends(self) -> tuple[float | None, float | None]:
        return self.low, self.high

    def excludes(self, value: float) -> bool:
        return self.low is not None and self.high is not None and not self.low <= value <= self.high

    def mapped(self, change: Callable[[float], float], falling: bool = False) -> Interval:
        """The interval of a monotonic function of the figure: rising, or else falling."""
        ends = [None if end is None else change(end) for end in (self.low, self.high)]
        low, high = reversed(ends) if falling else ends
        return Interval(change(self.estimate), low, high, self.basis, self.reason)

    def times(self, factor: float) -> Interval:
        """factor: not negative and known exactly."""
        return self.mapped(lambda value: value * factor)

    def around(self, estimate: float) -> Interval:
        """The same width around another estimate."""
        if self.low is None or self.high is None:
            return self._replace(estimate=estimate)
        low, high = estimate - (self.estimate - self.low), estimate + (self.high - self.estimate)
        return self._replace(estimate=estimate, low=low, high=high)


def range_of(values: Sequence[float | None]) -> Interval | None:
    """The mean, with the range if there are two or more values; None if there are none or one is unknown."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    return Interval(fmean(known), *((min(known), max(known)) if len(known) > 1 else ()))
