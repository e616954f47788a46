"""Forecasts for the report: those of `python -m analysis predict` at two, four and eight times the largest measured
size of each series."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.measures.metrics import gpu_hours
from analysis.tables.point import Point
from analysis.tables.series import Series, without_strategy

if TYPE_CHECKING:
    from analysis.scaling.bayesian import Predictive
    from analysis.scaling.prediction import SeriesPrediction
    from analysis.stats.intervals import Interval

DOUBLINGS = (2, 4, 8)


@dataclass(frozen=True)
class Forecast:
    """Forecast for one size. measured: samples per second; None if not measured. rate: predicted; None if refused.
    efficiency: with its 90 % interval, relative to the smallest measured size. linear, flat: trivial predictors.
    epoch_gpu_hours: of an epoch's steps, at the median. caveats: why it is refused, or how far it extrapolates."""

    gpus: int
    nodes: int
    measured: float | None
    rate: Predictive | None
    efficiency: Interval | None
    linear: float
    flat: float
    epoch_gpu_hours: float | None
    caveats: tuple[str, ...]


@dataclass(frozen=True)
class Outlook:
    """Forecasts of one series. point: its first measured point.
    forecasts: for the measured sizes and for DOUBLINGS times the largest, in ascending order. why_not: why there are
    none. marks: warnings of the points used. basis: sentences on assumptions and omissions."""

    point: Point
    forecasts: tuple[Forecast, ...]
    why_not: str | None
    marks: tuple[str, ...]
    basis: tuple[str, ...]

    @property
    def largest(self) -> int:
        """GPUs of the largest measured size."""
        return max(one.gpus for one in self.forecasts if one.measured is not None)

    @property
    def refusals(self) -> tuple[str, ...]:
        """Sentences on why the series, or some of its sizes, have no figure."""
        if self.why_not is not None:
            return (self.why_not,)
        refused = [one for one in self.forecasts if one.rate is None]
        return tuple(f"{one.gpus}: {'; '.join(one.caveats)}" for one in refused)


def outlook_of(points: Sequence[Point], drawn: Sequence[Series]) -> list[Outlook]:
    """Forecast these series of the points. Not all at once: a posterior takes some 0.1 s."""
    from analysis.scaling.prediction import predict_series
    from analysis.scaling.study_series import study_series

    first = {series.key: series.first for series in drawn}
    alike = {series.work for series in drawn}
    # Include the framework alone: it supplies the size of one GPU to a series without one.
    wanted = {row.series for row in points if without_strategy(row.series) in alike}
    found = {}
    for source in study_series([row for row in points if row.series in wanted]):
        if source.key in first:
            largest = source.series.largest.gpus if source.series.sizes else 0
            prediction = predict_series(source, tuple(largest * n for n in DOUBLINGS), None, None)
            found[source.key] = _outlook(first[source.key], prediction)
    return [found[key] for key in first if key in found]


def _outlook(point: Point, prediction: SeriesPrediction) -> Outlook:
    source = prediction.source
    falls = source.series.falls() if len(source.series.sizes) > 1 else None
    basis = [*source.series.remarks, *prediction.basis, *([falls] if falls else [])]
    return Outlook(
        point=point,
        forecasts=tuple(_forecasts(prediction)),
        why_not=prediction.why_not,
        marks=source.marks,
        basis=tuple(basis),
    )


def _forecasts(prediction: SeriesPrediction) -> list[Forecast]:
    from analysis.scaling.prediction import efficiency_of

    found = []
    for one in prediction.predicted:
        rate = one.rate
        samples = prediction.source.train_samples
        hours = None if rate is None or samples is None else gpu_hours(one.size.gpus, samples / rate.median)
        found.append(
            Forecast(
                gpus=one.size.gpus,
                nodes=one.size.nodes,
                measured=one.measured,
                rate=rate,
                efficiency=efficiency_of(prediction, one),
                linear=one.linear,
                flat=one.flat,
                epoch_gpu_hours=hours,
                caveats=one.caveats,
            )
        )
    return found
