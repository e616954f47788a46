"""Converts the points of a study to series that laws can be fitted to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from analysis.base.numbers import common
from analysis.read.row import Run
from analysis.scaling.series import RateSeries, Size
from analysis.tables.point import Point
from analysis.tables.series import Series, apart_from_alone, series_of


@dataclass(frozen=True)
class StudySeries:
    """A series and its runs. marks: warnings of all its points, repeated in every prediction. train_samples: per epoch.
    gradient_bytes: per rank, in fp32. link_bytes_per_second: between nodes, from the cluster's configuration. These are
    None if unknown or different between runs. runs: completed ones at each size. key: the series in the table of
    points."""

    series: RateSeries
    cluster: str
    device: str
    marks: tuple[str, ...]
    train_samples: int | None
    gradient_bytes: float | None
    link_bytes_per_second: float | None = None
    runs: tuple[Sequence[Run], ...] = ()
    key: str = ""


def study_series(points: Sequence[Point]) -> list[StudySeries]:
    """Return the series in the order of the points. A series without a measurement on one GPU takes that of the
    framework alone, the baseline of its speedups; the framework alone is a series only if there is no other."""
    every = series_of(points)
    alone = {series.work: series.measured for series in every if series.alone}
    return [_one(series, alone.get(series.work, [])) for series in apart_from_alone(every)]


def _one(of: Series, alone: Sequence[Point]) -> StudySeries:
    measured = of.measured
    remarks = [f"no figure for {of.gaps}"] if of.gaps else []
    if all(point.gpus > 1 for point in measured):
        base = [point for point in alone if point.gpus == 1]
        if measured and base:
            remarks.append(f"1 {'rank' if base[0].device == 'cpu' else 'GPU'} is the framework alone")
        measured = base + measured
    runs = [point.completed for point in measured]
    flat = [run for own in runs for run in own]
    first = of.first
    marks = dict.fromkeys(mark for point in measured for mark in point.marks)
    sizes = {Size(point.gpus, point.nodes): point.rate for point in measured}
    ordered = sorted(sizes)
    of_size = {Size(point.gpus, point.nodes): point.completed for point in measured}
    parameters = common(run.parameters for run in flat)
    series = RateSeries(
        name=first.series_name,
        sizes=tuple(ordered),
        rates=tuple(sizes[size] for size in ordered),
        scaling=first.scaling,
        model="" if first.is_own else first.model,
        precision=first.precision,
        batch_per_gpu=common(_per_gpu(point) for point in measured),
        noise=_noise(runs),
        unit="CPU rank" if first.device == "cpu" else "GPU",
        counts=first.unit,
        remarks=tuple(remarks),
    )
    train_samples = common(run.train_samples for run in flat)
    gradient_bytes = None if parameters is None else 4.0 * parameters
    link = common(run.link_gb_per_s for run in flat)
    return StudySeries(
        series,
        first.cluster,
        first.device,
        tuple(marks),
        train_samples,
        gradient_bytes,
        None if link is None else link * 1e9,
        tuple(of_size[size] for size in ordered),
        first.series,
    )


def _per_gpu(point: Point) -> float | None:
    return None if point.samples_per_step is None else point.samples_per_step / point.gpus


def _noise(runs: Sequence[Sequence[Run]]) -> float | None:
    """Return the relative standard deviation of throughput between runs of a point, pooled over the points."""
    squares, df = 0.0, 0
    for own in runs:
        logs = [math.log(run.samples_per_second) for run in own]
        squares += sum((value - math.fsum(logs) / len(logs)) ** 2 for value in logs)
        df += max(0, len(logs) - 1)
    return math.sqrt(squares / df) if df else None
