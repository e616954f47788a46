"""Recommends the size to measure next: the one that narrows the prediction of a target by 10 % for the fewest
node-hours.

A run is simulated at each size: the law predicts what it would measure, with its uncertainty and the study's own noise.
The law is refitted with each of a few such values; the mean width of the 90 % interval at the target is the expected
width after the run (preposterior analysis: Raiffa and Schlaifer 1961, Applied Statistical Decision Theory, chapter 5).
The interval is that of the mean of many runs at the target; no measurement narrows the scatter of single runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from analysis.read.row import Run
from analysis.scaling.bayesian import CONSTANTS, Predictive, Prior, posterior, posteriors
from analysis.scaling.prediction import TOO_FAR, calibration, node_size, placed, usual_sizes
from analysis.scaling.series import RateSeries, Size
from analysis.scaling.study_series import StudySeries

# Probability that each quantile of `Predictive` stands for.
SHARES = (0.15, 0.225, 0.25, 0.225, 0.15)
NOTHING = 0.05  # less narrowing is not worth a run


@dataclass(frozen=True)
class Candidate:
    """One more run. repeat: its number among repeated runs if the size was measured; None for a new size. width:
    expected width of the 90 % interval at the target, relative to its median; None if the noise is unknown. narrowing:
    reduction of that width, as a share of today's. node_hours: of a run as long as those on the nearest measured size;
    None if unknown."""

    size: Size
    repeat: int | None
    width: float | None
    narrowing: float
    node_hours: float | None

    @property
    def node_hours_per_tenth(self) -> float | None:
        """Node-hours for each 10 % of narrowing."""
        return None if self.node_hours is None else self.node_hours * 0.1 / self.narrowing


@dataclass(frozen=True)
class NextSizes:
    """today: current prediction of the mean of many runs at the target. candidates: runs that narrow it, best first, by
    node-hours per 10 % of narrowing, or by narrowing if durations are unknown. width: of today's 90 % interval,
    relative to its median; None if the noise is unknown. why_not: why there is no answer. basis: further assumptions.
    """

    source: StudySeries
    target: Size | None
    today: Predictive | None
    width: float | None
    candidates: tuple[Candidate, ...]
    why_not: str | None
    basis: tuple[str, ...]


def next_sizes(source: StudySeries, gpus: int, gpus_per_node: int | None, bytes_per_second: float | None) -> NextSizes:
    """Rank further runs. gpus: the target. gpus_per_node, bytes_per_second: as in `predict_series`."""
    series = source.series
    if not series.sizes:
        return _none(source, "no completed run: nothing can be concluded; measure any size first")
    per_node, basis = node_size(source) if gpus_per_node is None else (gpus_per_node, ())
    target = placed(gpus, per_node)
    if target.gpus % target.nodes:
        return _none(source, f"{gpus} GPUs cannot be placed evenly on {target.nodes} nodes")
    if gpus > TOO_FAR * series.largest.gpus:
        far = f"{gpus} GPUs are more than {TOO_FAR} times the largest measured size ({series.words(-1)})"
        return _none(source, f"{far}, and nothing is said beyond: take a smaller target first")
    from_link, link_basis = calibration(source, bytes_per_second)
    prior = None if from_link is None else from_link.prior
    prior = Prior(noise=series.noise) if prior is None else prior
    now = posterior(series, prior)
    today = now.predict_mean(target)
    width_today = _width(series, [1.0] * len(series.sizes), prior, target)
    basis += link_basis
    if len(series.sizes) == 1:
        basis += ("one size was measured: how it scales is what is usual, until there is a second",)
    if series.noise is None:
        basis += (
            "no size was measured twice: how far runs differ is not known, so there are no repeats among these, and "
            "no widths",
        )
    found = []
    for size in sorted({*usual_sizes(gpus, per_node), target} - set(series.sizes)):
        width = _width_after(source, prior, now.predict(size), size, target)
        found.append(_candidate(source, size, None, width, width_today))
    if series.noise is not None:
        for i, size in enumerate(series.sizes):
            width = _width_after_repeat(source, prior, i, target)
            repeat = 1 + max((run.repeat or 0 for run in source.runs[i]), default=0)
            found.append(_candidate(source, size, repeat, width, width_today))
    useful = [one for one in found if one.narrowing > NOTHING]
    if any(one.node_hours is None for one in useful):
        basis += ("how long runs take is not known: ordered by narrowing alone",)
        useful.sort(key=lambda one: -one.narrowing)
    else:
        useful.sort(key=lambda one: one.node_hours_per_tenth or 0.0)
    shown = None if series.noise is None else width_today
    return NextSizes(source, target, today, shown, tuple(useful), None, basis)


def relative_width(predicted: Predictive) -> float:
    return (predicted.quantiles[-1] - predicted.quantiles[0]) / predicted.median


def _none(source: StudySeries, why: str) -> NextSizes:
    return NextSizes(source, None, None, None, (), why, ())


def _width_after(source: StudySeries, prior: Prior, predicted: Predictive, size: Size, target: Size) -> float:
    """Return the expected width after one run at a new size, which weighs less than the mean of several runs."""
    series = source.series
    runs = sum(map(len, source.runs)) / len(source.runs)
    counts = [1.0] * len(series.sizes) + [_variance(series, runs) / _variance(series, 1)]
    total = 0.0
    for rate, share in zip(predicted.quantiles, SHARES, strict=True):
        rows = sorted(zip((*series.sizes, size), (*series.rates, rate), counts, strict=True))
        sizes, rates, ordered = zip(*rows, strict=True)
        after = dataclasses.replace(series, sizes=sizes, rates=rates)
        total += share * _width(after, ordered, prior, target)
    return total


def _width_after_repeat(source: StudySeries, prior: Prior, index: int, target: Size) -> float:
    """Return the width if one more run at this size raises its weight as it reduces the variance of its mean."""
    series, runs = source.series, len(source.runs[index])
    counts = [1.0] * len(series.sizes)
    counts[index] = _variance(series, runs) / _variance(series, runs + 1)
    return _width(series, counts, prior, target)


def _width(series: RateSeries, counts: Sequence[float], prior: Prior, target: Size) -> float:
    """Return the relative width of the 90 % interval of the mean at the target. counts: weights for `posteriors`."""
    return relative_width(posteriors(series, [counts], prior)[0].predict_mean(target))


def _variance(series: RateSeries, runs: float) -> float:
    """Return the variance of a mean of this many runs about the law: noise / runs, plus misfit of the law."""
    return CONSTANTS.noise[0] ** 2 + (series.noise or 0.0) ** 2 / runs


def _candidate(
    source: StudySeries,
    size: Size,
    repeat: int | None,
    width: float,
    width_today: float,
) -> Candidate:
    hours = _hours(source, size)
    narrowing = 1 - width / width_today
    shown = None if source.series.noise is None else width
    return Candidate(size, repeat, shown, narrowing, None if hours is None else hours * size.nodes)


def _hours(source: StudySeries, size: Size) -> float | None:
    """Return the mean duration of a run at the nearest measured size."""
    spans: list[tuple[float, float]] = []
    for own, runs in zip(source.series.sizes, source.runs, strict=True):
        seconds = _seconds(runs)
        if seconds:
            ratio = max(own.gpus, size.gpus) / min(own.gpus, size.gpus)
            spans.append((ratio, sum(seconds) / len(seconds) / 3600))
    return min(spans)[1] if spans else None


def _seconds(runs: Sequence[Run]) -> list[float]:
    pairs = [(run.started, run.ended) for run in runs]
    return [end - start for start, end in pairs if start is not None and end is not None and end > start]
