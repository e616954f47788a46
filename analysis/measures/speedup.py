"""The points of a study with speedup, efficiency and their baselines.

The baseline is the framework alone, strategy `plain` on one GPU with all else equal; if the study has no such point,
the smallest measured number of GPUs of the series.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from analysis.measures.breakdown import DATA, SYNCHRONISATION, Parts, parts_of_runs
from analysis.measures.metrics import efficiency, speedup
from analysis.read.row import Run
from analysis.stats.estimates import rate_ratio
from analysis.stats.intervals import Interval
from analysis.tables.bases import basis_text, columns_of
from analysis.tables.point import Message, Point
from analysis.tables.points import measured_series, step_seconds_if_known
from analysis.tables.series import Series, name_series, natural_order
from analysis.tables.warnings import BASELINE_MARKS, series_marks

OWN_BASELINE = "it is what the others are relative to"


def points_of(runs: Iterable[Run], differing: Collection[str] = ()) -> list[Point]:
    """Return the points ordered by series, then by GPUs and nodes; points without a completed run have no figures.

    differing: keys of points whose work differs (analysis/measures/equal_work.py). Runs with an unreadable spec belong
    to no point.
    """
    series = measured_series(runs, differing)
    names = name_series({one.key: one.first for one in series})
    alone = _alone(series)
    found = []
    for one in sorted(series, key=lambda one: (*map(natural_order, names[one.key]), one.key)):
        label, detail = names[one.key]
        base = alone.get(one.work) or next(iter(one.measured), None)
        completed = [run for point in one.points for run in point.completed]
        if base is not None and base not in one.points:
            completed += base.completed
        marks = tuple(series_marks(completed))
        found += [replace(point, label=label, detail=detail, **_related(point, base, marks)) for point in one.points]
    return found


def _alone(series: Sequence[Series]) -> dict[str, Point]:
    """Return the measured points of a framework alone on one GPU, by what they share with series relative to them."""
    found: dict[str, Point] = {}
    for one in series:
        for point in one.measured:
            if one.alone and point.gpus == 1:
                found.setdefault(one.work, point)
    return found


def _related(point: Point, base: Point | None, of_series: tuple[str, ...]) -> dict[str, Any]:
    """Figures relative to the series: speedup, efficiency, and warnings of the whole series."""
    if base is None or not point.completed:
        return {}
    step_seconds = step_seconds_if_known(point.completed)
    parts = None if step_seconds is None else parts_of_runs(point.completed, step_seconds)
    seconds = {} if parts is None else {name: part.estimate for name, part in parts.seconds.items()}
    ideal = point.gpus / base.gpus
    ratio = rate_ratio(point.cost, base.cost).interval()
    basis = basis_text(ratio)
    if point is base:
        ratio, basis = Interval(ratio.estimate), f"no interval: {OWN_BASELINE}"
    kept = efficiency(point.rate, point.gpus, base.rate, base.gpus)
    from_base = () if point is base else tuple(mark for own, mark in BASELINE_MARKS.items() if own in base.marks)
    return {
        "data_stall_seconds": seconds.get(DATA),
        "exposed_communication_seconds": seconds.get(SYNCHRONISATION),
        "allreduce": _messages(point.completed, parts),
        "relative_to_gpus": base.gpus,
        "relative_to_strategy": base.strategy,
        "ideal_speedup": ideal,
        **columns_of("speedup", ratio._replace(estimate=speedup(point.rate, base.rate))),
        "speedup_basis": basis,
        **columns_of("efficiency", ratio.mapped(lambda value: value / ideal)._replace(estimate=kept)),
        "efficiency_basis": basis,
        "marks": (*point.marks, *of_series, *from_base),
    }


def _messages(completed: Sequence[Run], parts: Parts | None) -> tuple[Message, ...]:
    """An allreduce as large as the gradients, as among the parts; for other sizes in older logs, means over the
    runs."""
    by_size: dict[int | None, list[float]] = defaultdict(list)
    for run in completed:
        for message in run.allreduce:
            by_size[message["bytes"]].append(message["seconds"])
    seconds = {n: fmean(by_size[n]) for n in sorted(by_size, key=lambda n: n or 0)}
    if parts is not None and parts.allreduce is not None:
        seconds[parts.allreduce_bytes] = parts.allreduce.estimate
    return tuple(Message(n, s) for n, s in seconds.items())
