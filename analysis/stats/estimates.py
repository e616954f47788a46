"""How sure a figure is: intervals of means and of ratios, a test of "faster than", and what was too little to test.

What is estimated is the mean cost, in seconds per sample; a rate is its reciprocal, so that rates are combined
harmonically. Runs are independent repetitions, the steps of one run are not: where there are two runs or more, all
comes from the runs, each counted once. docs/method.md has the reasons, and the coverage that was measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev, variance

from analysis.stats.intervals import Interval, Missing

CONFIDENCE = 0.95
LEVEL = 0.05  # of a family of comparisons
POWER = 0.8  # with which a difference that is called visible would have been seen
# Two runs give an interval, and one that is hardly ever narrow enough to say anything.
ENOUGH_RUNS = 3
FEWEST_BLOCKS = 6  # of one run: of fewer, a resampled run would hold less than two stretches
ALIKE = 1e-9  # relative: a standard error below it is the rounding of clocks and sums, and no variation


@dataclass(frozen=True)
class Estimate:
    """A mean and how sure it is.

    mean: above 0, mostly seconds per sample. error: standard error relative to the mean, which to first order is the
    standard error of its logarithm. freedom: degrees of freedom of that error. runs: how many; of one, its blocks.
    missing: why there is no error; None where there is one.
    """

    mean: float
    error: float
    freedom: float
    runs: int
    missing: Missing | None = None

    def interval(self) -> Interval:
        """Of the mean. Student's t on the scale of logarithms: it never reaches 0, and the interval of a rate is its
        reciprocal."""
        if self.missing is not None:
            return Interval(self.mean, basis=(self.runs,), reason=(self.missing,))
        factor = _exp(quantile(self.freedom, CONFIDENCE) * self.error)
        return Interval(self.mean, self.mean / factor, self.mean * factor, (self.runs,))

    def rate_interval(self) -> Interval:
        """Of the reciprocal: samples per second, where the mean is in seconds per sample."""
        cost = self.interval()
        if not cost.low or not cost.high:
            cost = cost._replace(low=None, high=None)
        return cost.mapped(lambda seconds: 1 / seconds, falling=True)


def of_runs(costs: Sequence[float]) -> Estimate:
    """The mean over two runs or more, by one cost of each (above 0; mostly seconds per sample)."""
    mean = fmean(costs)
    error = stdev(costs) / mean / math.sqrt(len(costs))
    n = len(costs)
    return Estimate(mean, error, n - 1, n, _alike(error, n))


def of_one_run(mean: float, error: float | None, freedom: float | None, blocks: int) -> Estimate:
    """The mean of a single run, with what `block_error` gave of its blocks: how steady the run was, and not what
    another run would give."""
    if error is None or freedom is None:
        return Estimate(mean, 0.0, 1.0, 1, Missing(1, blocks))
    return Estimate(mean, error, freedom, 1, _alike(error, 1))


def block_error(seconds: Sequence[float], samples: Sequence[float]) -> tuple[float, float] | None:
    """(standard error of seconds per sample, relative to it, degrees of freedom) from the blocks of one run, in the
    order of time; None of fewer than FEWEST_BLOCKS.

    The moving-block bootstrap (Künsch, Annals of Statistics 17(3), 1989): a run is put together anew from overlapping
    stretches of l neighbouring blocks, so that what makes neighbours alike stays in. For a mean its variance is known
    without drawing: that of the sums of all stretches. So there is no seed and no noise of drawing. The ratio of the
    sums of seconds and samples is linearised; the factor n / (n - l) takes out the bias of few stretches. l is the root
    of n, longer than the customary cube root: with neighbours that are alike, that one was measured to be too narrow.
    """
    import numpy as np

    n = len(seconds)
    total_seconds, total_samples = math.fsum(seconds), math.fsum(samples)
    if n < FEWEST_BLOCKS or not total_seconds or not total_samples:
        return None
    length = math.isqrt(n - 1) + 1
    # Each as a part of the whole, so that nothing overflows.
    residuals = np.asarray(seconds) / total_seconds - np.asarray(samples) / total_samples
    sums = np.convolve(residuals, np.ones(length), "valid")
    variance = sums.var() * n / length * n / (n - length)
    return math.sqrt(variance), n / length - 1


@dataclass(frozen=True)
class Ratio:
    """The ratio of two rates whose costs are independent means. log_error: standard error of its logarithm. basis,
    missing: as `basis` and `reason` of its interval."""

    value: float
    log_error: float
    freedom: float
    basis: tuple[int, ...]
    missing: tuple[Missing, ...] = ()

    def interval(self) -> Interval:
        """The interval excludes 1 just where `probability` is below 5 %."""
        if self.missing:
            return Interval(self.value, basis=self.basis, reason=self.missing)
        factor = _exp(quantile(self.freedom, CONFIDENCE) * self.log_error)
        return Interval(self.value, self.value / factor, self.value * factor, self.basis)

    def probability(self) -> float:
        """Two-sided p value of Welch's t test (Biometrika 34, 1947) on logarithms: how often a ratio would be so far
        from 1 or farther, were the means equal. Only where nothing is missing."""
        from scipy.special import stdtr

        return float(2 * stdtr(self.freedom, -abs(math.log(self.value)) / self.log_error))

    def visible_factor(self, level: float) -> float:
        """By what factor the means must have differed to be told apart with a probability of POWER, at that level; to
        the approximation that a t distribution that is not centred is one that is moved."""
        reach = quantile(self.freedom, 1 - level) + quantile(self.freedom, 2 * POWER - 1)
        return _exp(reach * self.log_error)


def rate_ratio(own: Estimate, base: Estimate) -> Ratio:
    """The rate of which `own` is the cost by that of `base`: base.mean / own.mean. On the scale of logarithms, with the
    degrees of freedom of Welch and Satterthwaite. Not Fieller's interval: with few runs that can be the whole axis, or
    two pieces of it.

    With less than two degrees of freedom on one side (two runs, or few blocks) theirs are too many: the fewer of the
    two are taken, which is on the safe side.
    """
    a, b = own.error**2, base.error**2
    fewer = min(own.freedom, base.freedom)
    missing = tuple(dict.fromkeys(why for why in (own.missing, base.missing) if why is not None))
    freedom = fewer
    if not missing and fewer >= 2:
        freedom = (a + b) ** 2 / (a**2 / own.freedom + b**2 / base.freedom)
    return Ratio(base.mean / own.mean, math.sqrt(a + b), freedom, (own.runs, base.runs), missing)


def mean_difference(first: Sequence[float], second: Sequence[float]) -> Interval:
    """mean(first) - mean(second): t with the degrees of freedom of Welch (Biometrika 34, 1947), as neither the
    variances nor the numbers of runs need be alike. No interval with fewer than two of either."""
    found = Interval(fmean(first) - fmean(second), basis=(len(first), len(second)))
    if min(found.basis) < 2:
        return found
    parts = [(variance(values) / len(values), len(values) - 1) for values in (first, second)]
    squared = sum(part for part, _ in parts)  # of the standard error
    # Where nothing varied, the interval has no width.
    freedom = squared**2 / sum(part**2 / n for part, n in parts) if squared else 1.0
    half = quantile(freedom, CONFIDENCE) * math.sqrt(squared)
    return found._replace(low=found.estimate - half, high=found.estimate + half)


def holm(probabilities: Sequence[float]) -> list[float]:
    """p values corrected for being many (Holm, Scandinavian Journal of Statistics 6, 1979), in the order given: calling
    those below LEVEL different makes any false call with a probability of at most LEVEL, however they depend."""
    m = len(probabilities)
    corrected, largest = [0.0] * m, 0.0
    for rank, i in enumerate(sorted(range(m), key=lambda i: probabilities[i])):
        largest = max(largest, min(1.0, (m - rank) * probabilities[i]))
        corrected[i] = largest
    return corrected


def quantile(freedom: float, coverage: float) -> float:
    """Up to where Student's t has so much of its probability on both sides of 0 together."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.5 + coverage / 2))


def _alike(error: float, runs: int) -> Missing | None:
    """Equal values would promise an interval of no width."""
    return Missing(runs) if error < ALIKE else None


def _exp(exponent: float) -> float:
    """Infinite where it is too large for a float."""
    try:
        return math.exp(exponent)
    except OverflowError:
        return math.inf
