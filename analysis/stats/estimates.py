"""Confidence intervals of means and ratios, and the test behind "faster than".

The quantity estimated is the mean cost in seconds per sample. A rate is its reciprocal, so rates are combined
harmonically. Runs are independent repetitions, the steps of one run are not: with two or more runs everything is
computed from the runs, each counted once. docs/method.md gives the reasons and the measured coverage.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev, variance

from analysis.stats.intervals import Interval, Missing

CONFIDENCE = 0.95
ALPHA = 0.05  # family-wise error rate of a report's comparisons
POWER = 0.8  # of the minimum detectable ratio
ENOUGH_RUNS = 3  # two runs give an interval, but one that is rarely narrow enough to be useful
ALIKE = 1e-9  # a relative standard error below this is rounding of clocks and sums, not variation


@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error."""

    mean: float  # above 0, mostly seconds per sample
    relative_se: float  # standard error / mean: to first order the standard error of the logarithm
    df: float  # degrees of freedom of the standard error
    runs: int  # 1: the standard error comes from the blocks of that run
    missing: Missing | None = None  # why there is no standard error

    def interval(self) -> Interval:
        """The log-scale t interval of the mean: it never reaches 0, and its reciprocal is the interval of the rate."""
        if self.missing is not None:
            return Interval(self.mean, basis=(self.runs,), reason=(self.missing,))
        factor = _exp(t_critical(self.df, CONFIDENCE) * self.relative_se)
        return Interval(self.mean, self.mean / factor, self.mean * factor, (self.runs,))

    def rate_interval(self) -> Interval:
        """The interval of the reciprocal: samples per second if the mean is in seconds per sample."""
        cost = self.interval()
        if not cost.low or not cost.high:
            cost = cost._replace(low=None, high=None)
        return cost.mapped(lambda seconds: 1 / seconds, falling=True)


def of_runs(costs: Sequence[float]) -> Estimate:
    """The mean over two or more runs, from one cost each (above 0, mostly seconds per sample)."""
    mean = fmean(costs)
    relative_se = stdev(costs) / mean / math.sqrt(len(costs))
    n = len(costs)
    return Estimate(mean, relative_se, n - 1, n, _alike(relative_se, n))


def of_one_run(mean: float, relative_se: float | None, df: float | None, blocks: int) -> Estimate:
    """The mean of a single run, with the error from its blocks (harness.core.measuring.precision): how steady this run
    was, not what another would give."""
    if relative_se is None or df is None:
        return Estimate(mean, 0.0, 1.0, 1, Missing(1, blocks))
    return Estimate(mean, relative_se, df, 1, _alike(relative_se, 1))


@dataclass(frozen=True)
class Ratio:
    """The ratio of two rates whose costs are independent means."""

    value: float
    log_se: float  # standard error of its logarithm
    df: float
    basis: tuple[int, ...]  # as of its interval
    missing: tuple[Missing, ...] = ()  # as the `reason` of its interval

    def interval(self) -> Interval:
        """The interval excludes 1 exactly if `p_value` is below 5 %."""
        if self.missing:
            return Interval(self.value, basis=self.basis, reason=self.missing)
        factor = _exp(t_critical(self.df, CONFIDENCE) * self.log_se)
        return Interval(self.value, self.value / factor, self.value * factor, self.basis)

    def p_value(self) -> float:
        """Two-sided p value of Welch's t test (Biometrika 34, 1947) on logarithms; only if nothing is missing."""
        from scipy.special import stdtr

        return float(2 * stdtr(self.df, -abs(math.log(self.value)) / self.log_se))

    def min_detectable_ratio(self, alpha: float) -> float:
        """The ratio of the means that a test at level alpha would have detected with power POWER. Approximates the
        noncentral t distribution by a shifted one."""
        reach = t_critical(self.df, 1 - alpha) + t_critical(self.df, 2 * POWER - 1)
        return _exp(reach * self.log_se)


def rate_ratio(own: Estimate, base: Estimate) -> Ratio:
    """The ratio of the rates whose costs are `own` and `base`: base.mean / own.mean.

    On the log scale, with Welch-Satterthwaite degrees of freedom. Not Fieller's interval, which with few runs can be
    the whole axis or two pieces of it. With fewer than two degrees of freedom on one side (two runs, or few blocks)
    Welch-Satterthwaite gives too many; the smaller of the two is taken, which is conservative.
    """
    a, b = own.relative_se**2, base.relative_se**2
    df = min(own.df, base.df)
    missing = tuple(dict.fromkeys(why for why in (own.missing, base.missing) if why is not None))
    if not missing and df >= 2:
        df = (a + b) ** 2 / (a**2 / own.df + b**2 / base.df)
    return Ratio(base.mean / own.mean, math.sqrt(a + b), df, (own.runs, base.runs), missing)


def mean_difference(first: Sequence[float], second: Sequence[float]) -> Interval:
    """mean(first) - mean(second) with Welch's t interval (Biometrika 34, 1947): neither the variances nor the numbers
    of runs need be equal. No interval with fewer than two runs on either side."""
    found = Interval(fmean(first) - fmean(second), basis=(len(first), len(second)))
    if min(found.basis) < 2:
        return found
    parts = [(variance(values) / len(values), len(values) - 1) for values in (first, second)]
    squared_se = sum(part for part, _ in parts)
    # If nothing varied, the interval has no width.
    df = squared_se**2 / sum(part**2 / n for part, n in parts) if squared_se else 1.0
    half = t_critical(df, CONFIDENCE) * math.sqrt(squared_se)
    return found._replace(low=found.estimate - half, high=found.estimate + half)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm-corrected p values (Scandinavian Journal of Statistics 6, 1979), in the given order: calling those below
    ALPHA different keeps the family-wise error rate at or below ALPHA, however the tests depend on each other."""
    m = len(p_values)
    corrected, largest = [0.0] * m, 0.0
    for rank, i in enumerate(sorted(range(m), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (m - rank) * p_values[i]))
        corrected[i] = largest
    return corrected


def t_critical(df: float, coverage: float) -> float:
    """The two-sided critical value of Student's t distribution."""
    from scipy.special import stdtrit

    return float(stdtrit(df, 0.5 + coverage / 2))


def _alike(relative_se: float, runs: int) -> Missing | None:
    """Equal values would give an interval of no width."""
    return Missing(runs) if relative_se < ALIKE else None


def _exp(exponent: float) -> float:
    """exp, or infinity if that does not fit into a float."""
    try:
        return math.exp(exponent)
    except OverflowError:
        return math.inf
