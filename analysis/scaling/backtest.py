"""Backtest of the laws: how well they predict the largest size from sizes up to half of it, and each size from all
others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from analysis.scaling.baselines import BEST_LAW, FLAT, LINEAR, RING, best_law, flat, linear, ring_term
from analysis.scaling.bayesian import Predictive, posteriors
from analysis.scaling.series import RateSeries, Size
from analysis.scaling.single_node import one_node
from analysis.stats.intervals import Interval
from analysis.stats.proportions import wilson

PEERS: Mapping[str, Callable[[RateSeries, Size], float | None]] = {
    LINEAR: linear,
    FLAT: flat,
    RING: ring_term,
    BEST_LAW: best_law,
}


@dataclass(frozen=True)
class Fold:
    """A held-out measurement and its prediction from the rest; rates in samples per second."""

    size: Size
    measured: float
    predicted: Predictive

    @property
    def error(self) -> float:
        return abs(self.predicted.median / self.measured - 1)

    @property
    def in_50(self) -> bool:
        return not self.predicted.central50.excludes(self.measured)

    @property
    def in_90(self) -> bool:
        return not self.predicted.central90.excludes(self.measured)


@dataclass(frozen=True)
class SeriesBacktest:
    """Backtest of one series. largest: the largest size, predicted from those up to half of it; None for the reason
    in `why_not`. peers: predictions of the trivial predictors and others in samples per second; None if one cannot
    predict. left_out: each size from all others. one_node: the largest size, from the sizes on one node and a
    bandwidth; None if it does not apply."""

    series: RateSeries
    used: tuple[Size, ...]
    largest: Fold | None
    why_not: str | None
    peers: Mapping[str, float | None]
    left_out: tuple[Fold, ...]
    one_node: Fold | None


@dataclass(frozen=True)
class Summary:
    """One predictor over several series: mean and largest absolute relative error of the largest size."""

    count: int
    mean: float | None
    worst: float | None


def try_series(series: RateSeries, bandwidth: float | None = None) -> SeriesBacktest:
    """Backtest a series. bandwidth: bytes per second between nodes; None: the one in the system's name, if any."""
    keep = series.up_to_half()
    if len(series.sizes) == 1:
        return SeriesBacktest(series, (), None, "one size only: how it scales cannot be concluded", {}, (), None)
    others = [[j != i for j in range(len(series.sizes))] for i in range(len(series.sizes))]
    kept = [*others, keep] if any(keep) else others
    found = posteriors(series, kept)
    left_out = tuple(
        Fold(size, rate, found[i].predict(size))
        for i, (size, rate) in enumerate(zip(series.sizes, series.rates, strict=True))
    )
    if not any(keep):
        why = f"no size up to half of {series.words(-1)}: nothing to predict it from"
        return SeriesBacktest(series, (), None, why, {}, left_out, None)
    rate, target, below = series.rates[-1], series.largest, series.only(keep)
    return SeriesBacktest(
        series,
        below.sizes,
        Fold(target, rate, found[-1].predict(target)),
        None,
        {name: peer(below, target) for name, peer in PEERS.items()},
        left_out,
        from_one_node(series, bandwidth),
    )


def summary(tests: Sequence[SeriesBacktest], peer: str | None = None) -> Summary:
    """Summarise a peer, or the pooled law, over the series that it predicts."""
    errors = []
    for test in tests:
        if test.largest is None:
            continue
        if peer is None:
            errors.append(test.largest.error)
        elif (rate := test.peers.get(peer)) is not None:
            errors.append(abs(rate / test.largest.measured - 1))
    return summary_of(errors)


def summary_of(errors: Sequence[float]) -> Summary:
    return Summary(len(errors), sum(errors) / len(errors), max(errors)) if errors else Summary(0, None, None)


def coverage(folds: Sequence[Fold]) -> tuple[Interval, Interval] | None:
    """Return the shares of the folds within their 50 % and 90 % intervals, with Wilson's interval."""
    if not folds:
        return None
    held_50, held_90 = sum(fold.in_50 for fold in folds), sum(fold.in_90 for fold in folds)
    return wilson(held_50, len(folds)), wilson(held_90, len(folds))


def all_folds(tests: Sequence[SeriesBacktest]) -> list[Fold]:
    """Return every prediction of the pooled law."""
    largest = [test.largest for test in tests if test.largest is not None]
    return largest + [fold for test in tests for fold in test.left_out]


def from_one_node(series: RateSeries, bandwidth: float | None) -> Fold | None:
    """Predict the largest size from those on one node and a bandwidth; None if it does not apply."""
    keep = [size.nodes == 1 for size in series.sizes]
    if not any(keep) or series.largest.nodes == 1:
        return None
    predicted = one_node(series.only(keep), bandwidth)
    if predicted.posterior is None:
        return None
    return Fold(series.largest, series.rates[-1], predicted.posterior.predict(series.largest))
