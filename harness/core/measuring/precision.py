"""How precisely the blocks of one run determine its mean cost, and when that is enough to stop. Standard library only,
Python 3.8 syntax: every rank computes the same answer, and the report uses the same code.

The values of a series are correlated, and a rule that stops at a narrow interval stops too early where a quiet stretch
looks narrow. benchmarks/RESULTS.md ("protocol") has the measured coverage.
"""

from __future__ import annotations

import itertools
import math
import operator
from typing import NamedTuple, Optional, Sequence

# Fewest blocks with an interval, and with which a run may stop.
FEWEST, FEWEST_TO_STOP = 6, 16
# A run may stop once its blocks span this many autocorrelation times; the interval of fewer is too narrow.
ENOUGH_TIMES = 10
NORMAL_97_5 = 1.959964
# A smaller relative deviation comes from rounding.
ROUNDING = 1e-9


class MeanError(NamedTuple):
    """Standard error of a run's mean cost.

    relative_se: divided by the mean. df: its degrees of freedom. times: number of autocorrelation times that the blocks
    span, which is the number of independent blocks that are worth as much.
    """

    relative_se: float
    df: float
    times: float

    @property
    def half_width(self) -> float:
        """Half the width of the t interval divided by the mean (nominally 95 %)."""
        return t_critical(self.df) * self.relative_se

    @property
    def wanders(self) -> bool:
        return self.times < ENOUGH_TIMES


def mean_error(seconds: Sequence[float], samples: Optional[Sequence[float]] = None) -> Optional[MeanError]:
    """Return the error of sum(seconds) / sum(samples), from the blocks of one run in time order; samples: equal in all
    blocks if None. None with fewer than FEWEST blocks or without a mean.

    Of two standard errors that allow for autocorrelation, the one with the wider interval:

    - overlapping batch means (Meketon and Schmeiser 1984), batches of ceil(sqrt(n)), which is the variance of the
      moving-block bootstrap (Künsch 1989) in closed form; n / (n - length) corrects the bias of few batches;
    - Student's t with n / tau independent values, tau = (1 + r) / (1 - r) blocks being the autocorrelation time of an
      AR(1) process, and r the lag-1 autocorrelation, corrected for its bias (Marriott and Pope 1954) and raised by one
      standard error, since chance makes it small just where an interval looks narrow.
    """
    n = len(seconds)
    samples = [1.0] * n if samples is None else samples
    total_seconds, total_samples = math.fsum(seconds), math.fsum(samples)
    if n < FEWEST or not total_seconds or not total_samples:
        return None
    # The ratio linearised, as fractions of the totals, so that nothing overflows. Their sum is 0.
    residuals = [a / total_seconds - b / total_samples for a, b in zip(seconds, samples)]
    squares = sum(map(operator.mul, residuals, residuals))
    tau = _autocorrelation_time(residuals, squares)
    corrected = MeanError(math.sqrt(squares * tau * n / (n - tau)), n / tau - 1, n / tau)
    return max(corrected, batch_means(residuals, n / tau), key=lambda error: error.half_width)


def is_known(series: Sequence[float], precision: float, last: bool) -> bool:
    """Return whether the mean of a series of step times is known well enough to stop: its relative half-width is at
    most `precision`, and it spans ENOUGH_TIMES autocorrelation times.

    Looked at only at growing lengths, each half as long again, since every look is another chance to stop by luck; and
    at the last value (last).
    """
    look = FEWEST_TO_STOP
    while look < len(series):
        look += look // 2
    if len(series) < FEWEST_TO_STOP or (look > len(series) and not last):
        return False
    error = mean_error(series)
    return error is not None and error.half_width <= precision and not error.wanders


def t_critical(df: float) -> float:
    """Return the 97.5 % quantile of Student's t (Abramowitz and Stegun 1964, 26.7.5): within 0.3 % from df = 3, within
    11 % at df = 1."""
    z = NORMAL_97_5
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / df**power for power, term in enumerate(terms, 1))


def batch_means(residuals: Sequence[float], times: float) -> MeanError:
    """Return the error of a sum that is 0, by overlapping batch means. times: of the result."""
    n = len(residuals)
    length = math.isqrt(n - 1) + 1
    until = [0.0, *itertools.accumulate(residuals)]
    sums = [until[end] - until[end - length] for end in range(length, n + 1)]
    mean = sum(sums) / len(sums)
    variance = sum((value - mean) ** 2 for value in sums) / len(sums)
    return MeanError(math.sqrt(variance * n / length * n / (n - length)), n / length - 1, times)


def _autocorrelation_time(residuals: Sequence[float], squares: float) -> float:
    """Return it in blocks, from 1 to a third of the series: more cannot be seen in it."""
    n = len(residuals)
    if squares < ROUNDING**2:
        return 1.0
    r = sum(map(operator.mul, residuals, residuals[1:])) / squares
    r += (1 + 4 * r) / n + math.sqrt(max(0.0, 1 - r * r) / n)
    return n / 3 if r >= 1 else min(n / 3, max(1.0, (1 + r) / (1 - r)))
