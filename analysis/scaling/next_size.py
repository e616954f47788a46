"""Recommends the size to measure next: the one that narrows the prediction of a target most per node-hour.

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
from analysis.scaling.bayesian import NOISE_MEDIAN, Predictive, Prior, posterior, posteriors, usual_prior
from analysis.scaling.prediction import TOO_FAR, calibration, node_size, placed
from analysis.scaling.series import RateSeries, Size
from analysis.scaling.study_series import StudySeries

# Probability that each quantile of `Predictive` stands for.
SHARES = (0.15, 0.225, 0.25, 0.225, 0.15)
# Samplers whose widths are averaged. With one, the width at the target has a relative standard deviation of 2.5 to
# 5.5 % between seeds (three synthetic series of 3 to 8 sizes, 12 seeds each).
SAMPLERS, SAMPLERS_OF_OUTCOME = 8, 2
# Less narrowing is sampling noise: twice the 2.7 % that remain in a difference of two such means.
NOTHING = 0.05


@dataclass(frozen=True)
class Candidate:
    """One more run. repeat: its number among repeated runs if the size was measured; None for a new size. width:
    expected width of the 90 % interval at the target, relative to its median. narrowing: reduction of that width, as
    a share of today's. node_hours: of a run as long as those on the nearest measured size; None if unknown."""

    size: Size
    repeat: int | None
    width: float
    narrowing: float
    node_hours: float | None

    @property
    def per_node_hour(self) -> float | None:
        return self.narrowing / self.node_hours if self.node_hours else None


@dataclass(frozen=True)
class NextSizes:
    """today: current prediction of the mean of many runs at the target. candidates: runs that narrow it, best first, by
    narrowing per node-hour, or by narrowing if durations are unknown. width: of today's 90 % interval, relative to its
    median. why_not: why there is no answer. basis: further assumptions."""

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
    prior = usual_prior(noise=series.noise) if prior is None else prior
    now = posterior(series, prior)
    today = now.predict_mean(target)
    width_today = _width(series, [1.0] * len(series.sizes), prior, target, SAMPLERS)
    basis += link_basis
    if len(series.sizes) == 1:
        basis += ("one size was measured: how it scales is what is usual, until there is a second",)
    if series.noise is None:
        basis += ("no size was measured twice: how far runs differ is not known, so repeats are not among these",)
    found = []
    for size in _new_sizes(series, target, per_node):
        width = _width_after(source, prior, now.predict(size), size, target)
        found.append(_candidate(source, size, None, width, width_today))
    if series.noise is not None:
        for i, size in enumerate(series.sizes):
            width = _width_after_repeat(source, prior, i, target)
            repeat = 1 + max((run.repeat or 0 for run in source.runs[i]), default=0)
            found.append(_candidate(source, size, repeat, width, width_today))
    useful = [one for one in found if one.narrowing > NOTHING]
    if any(one.per_node_hour is None for one in useful):
        basis += ("how long runs take is not known: ordered by narrowing alone",)
        useful.sort(key=lambda one: -one.narrowing)
    else:
        useful.sort(key=lambda one: -(one.per_node_hour or 0.0))
    return NextSizes(source, target, today, width_today, tuple(useful), None, basis)


def relative_width(predicted: Predictive) -> float:
    return (predicted.quantiles[-1] - predicted.quantiles[0]) / predicted.median


def _none(source: StudySeries, why: str) -> NextSizes:
    return NextSizes(source, None, None, None, (), why, ())


def _new_sizes(series: RateSeries, target: Size, per_node: int | None) -> list[Size]:
    """Return unmeasured sizes up to the target: 2^i GPUs, and 2^i and 3·2^i full nodes."""
    counts = {target.gpus}
    for i in range(target.gpus.bit_length()):
        counts |= {2**i} | ({2**i * per_node, 3 * 2**i * per_node} if per_node else set())
    sizes = {placed(n, per_node) for n in counts if n <= target.gpus}
    return sorted(size for size in sizes - set(series.sizes) if size.gpus % size.nodes == 0)


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
        total += share * _width(after, ordered, prior, target, SAMPLERS_OF_OUTCOME)
    return total


def _width_after_repeat(source: StudySeries, prior: Prior, index: int, target: Size) -> float:
    """Return the width if one more run at this size raises its weight as it reduces the variance of its mean."""
    series, runs = source.series, len(source.runs[index])
    counts = [1.0] * len(series.sizes)
    counts[index] = _variance(series, runs) / _variance(series, runs + 1)
    return _width(series, counts, prior, target, SAMPLERS)


def _width(series: RateSeries, counts: Sequence[float], prior: Prior, target: Size, samplers: int) -> float:
    """Return the relative width of the 90 % interval of the mean at the target. counts: weights for `posteriors`."""
    found = posteriors(series, [counts] * samplers, prior)
    return sum(relative_width(each.predict_mean(target)) for each in found) / samplers


def _variance(series: RateSeries, runs: float) -> float:
    """Return the variance of a mean of this many runs about the law: noise / runs, plus misfit of the law."""
    return NOISE_MEDIAN**2 + (series.noise or 0.0) ** 2 / runs


def _candidate(
    source: StudySeries,
    size: Size,
    repeat: int | None,
    width: float,
    width_today: float,
) -> Candidate:
    hours = _hours(source, size)
    narrowing = 1 - width / width_today
    return Candidate(size, repeat, width, narrowing, None if hours is None else hours * size.nodes)


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
