"""Intervals of the parts of a step: from the rounds of one run, from several runs, and of differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median
from typing import NamedTuple

from analysis.stats.estimates import CONFIDENCE, quantile

# Of fewer values, even the smallest and the largest enclose the median with less than 95 %: 1 - 2 / 2^5 = 93.75 %.
FEWEST_ROUNDS = 6


class Ranged(NamedTuple):
    """A figure with its interval of 95 %; low and high are None where nothing varied that one could be made from."""

    value: float
    low: float | None = None
    high: float | None = None

    def times(self, factor: float) -> Ranged:
        """factor: from 0 on, known without an error."""
        return Ranged(self.value * factor, *(None if v is None else v * factor for v in (self.low, self.high)))

    @property
    def excludes_zero(self) -> bool:
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


def of_rounds(values: Sequence[float]) -> Ranged:
    """The median of the rounds of one run. Its interval lies between two order statistics and assumes no distribution
    (Le Boudec, Performance Evaluation of Computer and Communication Systems, 2010, theorem 2.1); it holds the variation
    within the run alone. None with fewer than FEWEST_ROUNDS."""
    n = len(values)
    if n < FEWEST_ROUNDS:
        return Ranged(median(values))
    below = 0  # how many of the ordered values are cut off at each end
    outside = 1 / 2**n  # probability that the median lies below the value `below`
    while outside + math.comb(n, below + 1) / 2**n <= (1 - CONFIDENCE) / 2:
        below += 1
        outside += math.comb(n, below) / 2**n
    ordered = sorted(values)
    return Ranged(median(values), ordered[below], ordered[n - 1 - below])


def of_runs(values: Sequence[float]) -> Ranged:
    """The mean of several runs' values with Student's t interval: mean ± t(0.975, n - 1) s / sqrt(n)."""
    if len(values) < 2:
        return Ranged(fmean(values))
    centre = fmean(values)
    # As statistics.stdev has it, whose exact fractions take a hundred times as long.
    deviation = math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1))
    half = quantile(len(values) - 1, CONFIDENCE) * deviation / math.sqrt(len(values))
    return Ranged(centre, centre - half, centre + half)


def difference(first: Ranged, second: Ranged) -> Ranged:
    """first - second, which were measured apart; the interval recovers the variance of each from its own (MOVER: Zou
    and Donner, Statistics in Medicine 27, 2008, 1693-1702, equation 2). None where one of them has no interval."""
    value = first.value - second.value
    if first.low is None or first.high is None or second.low is None or second.high is None:
        return Ranged(value)
    return Ranged(
        value,
        value - math.hypot(first.value - first.low, second.high - second.value),
        value + math.hypot(first.high - first.value, second.value - second.low),
    )
