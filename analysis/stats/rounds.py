"""Intervals of the parts of a step: from the rounds or blocks of one run, from several runs, and of differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from statistics import fmean, median

from analysis.stats.estimates import CONFIDENCE, t_critical
from analysis.stats.intervals import Interval
from harness.core.measuring.precision import FEWEST, mean_error

# With five values even the range covers the median with less than 95 %: 1 - 2 / 2^5 = 93.75 %.
FEWEST_ROUNDS = 6


def of_rounds(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """The median of the rounds of one run, with a distribution-free interval between two order statistics (Le Boudec,
    Performance Evaluation of Computer and Communication Systems, 2010, theorem 2.1). It covers only the variation
    within the run. No interval with fewer than FEWEST_ROUNDS at 95 %, and with fewer than 8 at 99 %."""
    below = _cut_off(len(values), confidence)
    if below is None:
        return Interval(median(values))
    ordered = sorted(values)
    return Interval(median(ordered), ordered[below], ordered[-1 - below])


@cache
def _cut_off(n: int, confidence: float) -> int | None:
    """Number of order statistics to leave out at each end of n values; None if n is too small for an interval."""
    if 2 / 2**n > 1 - confidence:
        return None
    below = 0
    outside = 1 / 2**n  # probability that the median lies below value number `below`
    while outside + math.comb(n, below + 1) / 2**n <= (1 - confidence) / 2:
        below += 1
        outside += math.comb(n, below) / 2**n
    return below


def of_blocks(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """The mean of one run's consecutive blocks, equally long, with a t interval that allows for their autocorrelation.
    No interval with too few blocks (harness.core.measuring.precision)."""
    centre = fmean(values)
    if not any(values) and len(values) >= FEWEST:
        return Interval(centre, centre, centre)
    error = mean_error(values)
    if error is None:
        return Interval(centre)
    half = t_critical(error.df, confidence) * error.relative_se * abs(centre)
    return Interval(centre, centre - half, centre + half)


def of_runs(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """The mean of several runs' values with Student's t interval: mean ± t(0.975, n - 1) s / sqrt(n) at 95 %."""
    if len(values) < 2:
        return Interval(fmean(values))
    centre = fmean(values)
    # statistics.stdev computes with exact fractions, which takes a hundred times as long.
    deviation = math.sqrt(math.fsum((value - centre) ** 2 for value in values) / (len(values) - 1))
    half = t_critical(len(values) - 1, confidence) * deviation / math.sqrt(len(values))
    return Interval(centre, centre - half, centre + half)


def difference(first: Interval, second: Interval) -> Interval:
    """first - second, measured independently. The interval is recovered from both (MOVER: Zou and Donner, Statistics in
    Medicine 27, 2008, 1693-1702, equation 2); no interval if one of them has none."""
    value = first.estimate - second.estimate
    if first.low is None or first.high is None or second.low is None or second.high is None:
        return Interval(value)
    return Interval(
        value,
        value - math.hypot(first.estimate - first.low, second.high - second.estimate),
        value + math.hypot(first.high - first.estimate, second.estimate - second.low),
    )
