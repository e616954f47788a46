"""The one type of interval: a figure, the ends of its interval, what they come from, or why there are none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import NamedTuple


class Missing(NamedTuple):
    """Why there is no interval of an estimate. blocks: how many a single run has, where they are too few; None: what it
    comes from (so many runs; of one, its blocks) is alike to the last digit."""

    runs: int
    blocks: int | None = None


class Interval(NamedTuple):
    """An estimate with its interval: 95 % of what was measured, the range of several values, or what a prediction says.

    low, high: None where there is no interval. basis: of each estimate in it the number of runs, 1 meaning a single one
    with its blocks or rounds; empty where that is said elsewhere. reason: why there is no interval, where it is known.
    """

    estimate: float
    low: float | None = None
    high: float | None = None
    basis: tuple[int, ...] = ()
    reason: tuple[Missing, ...] = ()

    @property
    def ends(self) -> tuple[float | None, float | None]:
        return self.low, self.high

    def excludes(self, value: float) -> bool:
        return self.low is not None and self.high is not None and not self.low <= value <= self.high

    def mapped(self, change: Callable[[float], float], falling: bool = False) -> Interval:
        """Of a function of the figure that rises with it, or falls, and adds no error of its own."""
        ends = [None if end is None else change(end) for end in (self.low, self.high)]
        low, high = reversed(ends) if falling else ends
        return Interval(change(self.estimate), low, high, self.basis, self.reason)

    def times(self, factor: float) -> Interval:
        """factor: from 0 on, known without an error."""
        return self.mapped(lambda value: value * factor)

    def around(self, estimate: float) -> Interval:
        """As wide, around another estimate."""
        if self.low is None or self.high is None:
            return self._replace(estimate=estimate)
        low, high = estimate - (self.estimate - self.low), estimate + (self.high - self.estimate)
        return self._replace(estimate=estimate, low=low, high=high)


def range_of(values: Sequence[float | None]) -> Interval | None:
    """The mean, and from two values on their range; None where one is not known, or there is none."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    return Interval(fmean(known), *((min(known), max(known)) if len(known) > 1 else ()))
