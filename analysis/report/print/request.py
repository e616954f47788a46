"""A request for computing time, and what the study says about it: the sizes of a series with their costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.base.errors import StudyError
from analysis.base.text import printable, shortened
from analysis.measures.metrics import gpu_hours
from analysis.report.series_choice import named_by
from analysis.scaling.budget import best_plan, costs, plan_sentence, sizes_to_consider
from analysis.scaling.prediction import SeriesPrediction, predict_series
from analysis.scaling.request import Limits
from analysis.scaling.study_series import StudySeries, study_series
from analysis.stats.intervals import Interval
from analysis.tables.point import Point
from analysis.tables.points import step_seconds_if_known
from analysis.tables.series import without_strategy
from harness.core.spec import WEAK

if TYPE_CHECKING:
    from analysis.report.findings import Findings

MOST_NAMED = 6  # series in an error message


@dataclass(frozen=True)
class Ask:
    """The user's request.

    Attributes:
        gpus, runs: GPUs of one run, and number of runs. gpus is 0 if it is left to `limits`.
        hours, steps, epochs, samples: length of one run on that many GPUs; at most one is given.
        limits: budget of all runs, and least efficiency.
        series: words from the name of the series.
        cluster, gpus_per_node, bytes_per_second: as for a prediction.
    """

    gpus: int
    runs: int
    hours: float | None = None
    steps: float | None = None
    epochs: float | None = None
    samples: float | None = None
    limits: Limits | None = None
    series: str | None = None
    cluster: str | None = None
    gpus_per_node: int | None = None
    bytes_per_second: float | None = None


@dataclass(frozen=True)
class Size:
    """A number of GPUs, measured or predicted. Intervals: 95 % if measured, 90 % if predicted.

    Attributes:
        point: None if predicted.
        seconds: seconds per step; None if the batch is not known.
        rate: samples per second.
    """

    gpus: int
    point: Point | None
    seconds: Interval | None
    rate: Interval
    speedup: Interval
    efficiency: Interval


@dataclass(frozen=True)
class Request:
    """The request with its figures.

    Attributes:
        base: the point that speedups are relative to.
        sizes: sizes of the series including `asked`, ascending; preceded by the base if that is the framework alone.
        asked: the requested size.
        lacking: points of the series without a result.
        samples: training samples of one run; None if its length is unknown.
        prediction: None if the requested size was measured.
    """

    ask: Ask
    source: StudySeries
    base: Point
    sizes: tuple[Size, ...]
    asked: Size
    lacking: tuple[Point, ...]
    samples: float | None
    prediction: SeriesPrediction | None

    @property
    def points(self) -> list[Point]:
        """Points of the measured sizes."""
        return [size.point for size in self.sizes if size.point is not None]

    def hours(self, size: Size) -> Interval | None:
        """Return the duration of one run in hours, training steps only."""
        if self.samples is None:
            return None
        samples = self.samples
        return size.rate.mapped(lambda rate: samples / rate / 3600, falling=True)

    def gpu_hours(self, size: Size) -> float | None:
        """Return the GPU-hours of one run."""
        hours = self.hours(size)
        return None if hours is None else gpu_hours(size.gpus, hours.estimate * 3600)


def request_of(findings: Findings, ask: Ask) -> Request:
    """Evaluate a request. Raises StudyError if the study lacks the necessary data."""
    source, group = _series(findings, ask)
    measured = [point for point in group if point.measured]
    if not measured:
        raise StudyError(
            f"series {shortened(group[0].series_name, 120)}: no run has completed; there is nothing to show"
        )
    if ask.limits is not None:
        ask = _within(ask, ask.limits, source)
    base = _base(findings.points, measured[0])
    sizes = {point.gpus: _measured(point) for point in reversed(measured)}  # of several placements the first
    prediction = None
    if ask.gpus not in sizes:
        prediction = predict_series(source, (ask.gpus,), ask.gpus_per_node, ask.bytes_per_second)
        sizes[ask.gpus] = _predicted(prediction, ask.gpus, base, measured[0])
    asked = sizes[ask.gpus]
    alone = [] if base in measured else [_measured(base)]
    ordered = (*alone, *(sizes[gpus] for gpus in sorted(sizes)))
    lacking = tuple(point for point in group if not point.measured)
    return Request(ask, source, base, ordered, asked, lacking, _samples(ask, source, asked, measured[0]), prediction)


def _within(ask: Ask, limits: Limits, source: StudySeries) -> Ask:
    """Return the request for the size that the limits allow. Raises StudyError if there is none."""
    sizes = sizes_to_consider(source, ask.gpus_per_node)
    prediction = predict_series(source, sizes, ask.gpus_per_node, ask.bytes_per_second)
    if prediction.why_not is not None:
        raise StudyError(f"budget_gpu_hours=: no size can be chosen: {prediction.why_not}; give gpus=")
    found = costs(prediction, _given_samples(ask, source))
    of_one = dataclasses.replace(limits, gpu_hours=limits.gpu_hours / ask.runs)
    best = best_plan(found, of_one)
    if best is None:
        raise StudyError(
            f"budget_gpu_hours=, for one of {ask.runs} runs: {plan_sentence(found, of_one, source.device)}"
        )
    return dataclasses.replace(ask, gpus=best.predicted.size.gpus)


def _series(findings: Findings, ask: Ask) -> tuple[StudySeries, list[Point]]:
    sources = study_series(findings.points)
    clusters = sorted({source.cluster for source in sources})
    if ask.cluster is not None and ask.cluster not in clusters:
        raise StudyError(f"cluster={ask.cluster}: this study measured nothing there, only on {', '.join(clusters)}")
    found = [source for source in sources if ask.cluster in (None, source.cluster)]
    if ask.series is not None:
        exact = [source for source in found if source.series.name == ask.series]
        found = exact or [source for source in found if named_by(ask.series, source.series.name, source.key)]
    names = "; ".join(printable(source.series.name) for source in (found or sources)[:MOST_NAMED])
    if not found:
        raise StudyError(f"series={ask.series}: no series has that in its name; there are: {names}")
    if len(found) > 1:
        more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
        raise StudyError(f"a proposal is about one series; choose one with series=…, words of its name: {names}{more}")
    return found[0], [point for point in findings.points if point.series_name == found[0].series.name]


def _base(points: Sequence[Point], point: Point) -> Point:
    """Return the baseline of this point."""
    at = (point.relative_to_gpus, point.relative_to_strategy)
    alike = [other for other in points if (other.gpus, other.strategy) == at and other.measured]
    own = [other for other in alike if other.series == point.series]
    shared = without_strategy(point.series)
    return (own or [other for other in alike if without_strategy(other.series) == shared])[0]


def _measured(point: Point) -> Size:
    rate, speedup, efficiency = map(point.interval, ("samples_per_second", "speedup", "efficiency"))
    assert rate, "a measured point has a throughput"
    assert speedup, "and a speedup"
    assert efficiency, "and an efficiency"
    seconds = step_seconds_if_known(point.completed)
    return Size(point.gpus, point, None if seconds is None else Interval(seconds), rate, speedup, efficiency)


def _predicted(prediction: SeriesPrediction, gpus: int, base: Point, point: Point) -> Size:
    """Return a predicted size, relative to the measured base like the measured sizes."""
    if prediction.why_not is not None:
        raise StudyError(f"gpus={gpus} was not measured and cannot be predicted: {prediction.why_not}")
    one = next(each for each in prediction.predicted if each.size.gpus == gpus)
    if one.rate is None:
        raise StudyError(f"gpus={gpus} was not measured, and its prediction is {'; '.join(one.caveats)}")
    rate = one.rate.central90
    ideal = gpus / base.gpus
    batch = None if point.samples_per_step is None else _samples_per_step(point, gpus)
    return Size(
        gpus,
        None,
        None if batch is None else rate.mapped(lambda r: batch / r, falling=True),
        rate,
        rate.mapped(lambda r: r / base.rate),
        rate.mapped(lambda r: r / base.rate / ideal),
    )


def _samples_per_step(point: Point, gpus: int) -> float:
    """Return the samples per step of the point's series on `gpus` GPUs. Raises StudyError if they are unknown."""
    samples = point.samples_per_step
    if samples is None:
        raise StudyError("the batch of this series is not known: give hours= instead of steps=")
    return samples / point.gpus * gpus if point.scaling == WEAK else samples


def _samples(ask: Ask, source: StudySeries, asked: Size, point: Point) -> float | None:
    """Return the training samples of one run, equal for every size so that all do the same work."""
    if ask.epochs is not None or ask.samples is not None:
        return _given_samples(ask, source)
    if ask.steps is not None:
        return ask.steps * _samples_per_step(point, ask.gpus)
    return None if ask.hours is None else ask.hours * 3600 * asked.rate.estimate


def _given_samples(ask: Ask, source: StudySeries) -> float:
    if ask.samples is not None:
        return ask.samples
    assert ask.epochs is not None
    if source.train_samples is None:
        raise StudyError("epochs=: the runs do not say how many samples an epoch has; give samples=, hours= or steps=")
    return ask.epochs * source.train_samples
