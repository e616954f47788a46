"""Gain and cost of each number of GPUs: serial fraction, marginal efficiency, time, GPU-hours and energy per
epoch and to a target accuracy, and which points are Pareto-optimal in time and cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from analysis.base.column import COUNT, LOGICAL, RANGE, TEXT, Column, figure, table
from analysis.base.text import gpus_text, hours_unit, number, percent
from analysis.measures.metrics import gpu_hours, karp_flatt
from analysis.stats.estimates import CONFIDENCE, Estimate, t_critical
from analysis.stats.intervals import Interval
from analysis.tables.bases import basis_text, columns_of
from analysis.tables.columns import LAST, PLACE, POINT, SERIES, of_point
from analysis.tables.pairing import pairing
from analysis.tables.point import Point
from analysis.tables.series import by_series
from analysis.tables.warnings import WORK_DIFFERS

if TYPE_CHECKING:
    from analysis.measures.learning import Learning

COLUMNS = table(
    *SERIES,
    *PLACE,
    *of_point("relative_to_strategy", "gpus", "nodes", "global_batch", "batch_per_gpu", "relative_to_gpus"),
    figure("serial_fraction", "1", "serial fraction of Karp and Flatt", "Serial fraction", number, RANGE, "basis"),
    Column("serial_fraction_reason", TEXT, "why a size with a speedup has no serial fraction"),
    Column("added_to_gpus", COUNT, "GPUs of the next smaller size"),
    figure(
        "marginal_efficiency",
        "1",
        "efficiency of the GPUs added to the next smaller size",
        "Marginal efficiency",
        percent,
        RANGE,
        "basis",
        short="Marginal eff.",
    ),
    figure("epoch_seconds", "s", "step time per epoch", "Epoch, s", number, RANGE, "basis"),
    figure(
        "epoch_gpu_hours",
        "GPU h",
        "GPU-hours per epoch; rank-hours on CPUs",
        "Epoch, GPU-hours",
        number,
        RANGE,
        "basis",
    ),
    figure("epoch_joules", "J", "energy per epoch; the column energy says how it was obtained", "Epoch, J"),
    figure("to_train_seconds", "s", "of training until the target accuracy, mean of the runs"),
    figure("to_gpu_hours", "GPU h", "until the target accuracy, mean of the runs; rank-hours on CPUs"),
    figure("to_joules", "J", "until the target accuracy, mean of the runs"),
    Column(
        "epoch_front",
        LOGICAL,
        "whether the point is Pareto-optimal in time and cost of an epoch; null if unknown",
        "On the front",
    ),
    Column("target_front", LOGICAL, "whether the point is Pareto-optimal in time and cost to reach the target"),
    Column("basis", TEXT),
    Column("energy", TEXT, "measured, estimated or absent"),
    *LAST,
)

OWN_COLUMNS = tuple(name for name in COLUMNS if name not in POINT)

# Points that a sentence on a long front names, of either end.
FASTEST, CHEAPEST = 3, 2

DECISIONS_NOTE = (
    "Serial fraction: Karp and Flatt, from the speedup. Marginal efficiency: the throughput that the GPUs beyond the "
    "next smaller size added, each relative to one GPU's. Hours and energy of an epoch are of its steps alone. On "
    "the front: no other point of the same model and data set takes both less time and fewer GPU-hours; epochs at "
    "other batch sizes do not teach the same."
)


def decisions_of(
    points: Sequence[Point], learning: Learning, resources: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """One row per measured point, in order: the point, and the columns of COLUMNS that it lacks.

    resources: rows of `analysis.measures.resources`, for the energy.
    """
    energy = {row["point"]: row for row in resources}
    learned = {row["point"]: row for row in learning.points}
    rows: list[dict[str, Any]] = []
    for group in by_series(points):
        smaller: Point | None = None
        for point in group:
            if not point.completed:
                continue
            rows.append(
                {
                    **dict.fromkeys(OWN_COLUMNS),
                    "point": point,
                    **_serial(point),
                    **_marginal(point, smaller),
                    **_epoch(point),
                    **_energy(energy.get(point, {})),
                    **_target(learned.get(point, {})),
                    "basis": basis_text(point.cost.interval()),
                }
            )
            if smaller is None or point.gpus > smaller.gpus:
                smaller = point
    return _with_fronts(rows)


def marginal_efficiency(own: Estimate, gpus: int, smaller: Estimate, fewer: int, one: float) -> Interval:
    """Throughput added per GPU from `fewer` to `gpus`, relative to `one`, the samples per second of one GPU.

    own, smaller: seconds per sample at these sizes. The interval is Student's t of the difference, with the smaller of
    both degrees of freedom; it ignores the error of `one`.
    """
    added = (1 / own.mean - 1 / smaller.mean) / ((gpus - fewer) * one)
    missing = own.missing or smaller.missing
    if missing:
        return Interval(added, reason=(missing,))
    se = math.hypot(own.relative_se / own.mean, smaller.relative_se / smaller.mean) / ((gpus - fewer) * one)
    reach = t_critical(min(own.df, smaller.df), CONFIDENCE) * se
    return Interval(added, added - reach, added + reach, (own.runs,))


def front(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Return whether each (time, cost) pair is Pareto-optimal: no other is as good in both and better in one."""
    return [
        not any(o[0] <= p[0] and o[1] <= p[1] and (o[0] < p[0] or o[1] < p[1]) for o in points if o is not p)
        for p in points
    ]


def same_work(points: Iterable[Point]) -> list[list[Point]]:
    """Groups of points that are compared in time and cost: of one model, data set and cluster."""
    return list(pairing(points, fields=("model", "dataset", "cluster")).values())


def front_sentences(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The Pareto front of each model and data set in words, fastest first; of a long one its ends."""
    said = []
    for group in _by_work(rows):
        chosen = sorted((row for row in group if row["epoch_front"]), key=lambda row: row["epoch_seconds"])
        if len(chosen) < 2:
            continue
        first: Point = group[0]["point"]
        what = f"{first.model} on {first.dataset}"
        points = [_costs(row) for row in chosen]
        if (between := len(points) - FASTEST - CHEAPEST) > 1:
            points[FASTEST:-CHEAPEST] = [f"{between} between these"]
        said.append(f"{what}, one epoch, none beaten in both time and cost: {'; '.join(points)}")
    return said


def _costs(row: Mapping[str, Any]) -> str:
    point: Point = row["point"]
    where = f"{point.how} on {point.size}"
    marks = f" ({', '.join(point.marks)})" if point.marks else ""
    hours = f"{number(row['epoch_gpu_hours'])} {hours_unit(point.device)}"
    return f"{where}: {number(row['epoch_seconds'])} s, {hours}{marks}"


def _serial(point: Point) -> dict[str, Any]:
    if point.speedup is None or point.relative_to_gpus is None or point.gpus == point.relative_to_gpus:
        return {}
    more = point.gpus / point.relative_to_gpus
    reached = Interval(point.speedup, point.speedup_low, point.speedup_high)
    ranks = gpus_text(point.base_gpus, point.device)
    if point.speedup < 1:
        return {"serial_fraction_reason": f"slower than {ranks}"}
    if point.speedup > more:
        return {"serial_fraction_reason": f"more than {number(more)} times as fast as {ranks}"}
    return columns_of("serial_fraction", reached.mapped(lambda times: karp_flatt(times, more), falling=True))


def _marginal(point: Point, smaller: Point | None) -> dict[str, Any]:
    if smaller is None or not point.speedup or point.gpus <= smaller.gpus:
        return {}
    one = point.rate / point.speedup / point.base_gpus  # samples per second of one GPU of the baseline
    added = marginal_efficiency(point.cost, point.gpus, smaller.cost, smaller.gpus, one)
    return {"added_to_gpus": smaller.gpus, **columns_of("marginal_efficiency", added)}


def _epoch(point: Point) -> dict[str, Any]:
    epoch, *others = {run.train_samples for run in point.completed}
    if epoch is None or others:
        return {}
    seconds = point.cost.interval().times(epoch)
    hours = seconds.mapped(lambda each: gpu_hours(point.gpus, each))
    return columns_of("epoch_seconds", seconds) | columns_of("epoch_gpu_hours", hours)


def _energy(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"epoch_joules": row.get("joules_per_epoch"), "energy": row.get("energy")}


def _target(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row.get(name) for name in ("to_train_seconds", "to_gpu_hours", "to_joules")}


def _by_work(rows: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    row_of = {row["point"]: row for row in rows}
    return [[row_of[point] for point in group] for group in same_work(row_of)]


def _with_fronts(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for column, time, cost in (
        ("epoch_front", "epoch_seconds", "epoch_gpu_hours"),
        ("target_front", "to_train_seconds", "to_gpu_hours"),
    ):
        for group in _by_work(rows):
            # Points whose work differs are no alternatives.
            alike = [row for row in group if WORK_DIFFERS not in row["point"].marks]
            known = [row for row in alike if row.get(time) is not None and row.get(cost) is not None]
            for row, best in zip(known, front([(row[time], row[cost]) for row in known]), strict=True):
                row[column] = best
    return rows
