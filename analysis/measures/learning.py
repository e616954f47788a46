"""Learning: accuracy against samples, time and GPU-hours, its spread over seeds, and the cost to reach a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.base.column import COUNT, RANGE, REAL, TEXT, Column, figure, table
from analysis.base.text import count, duration, energy, number, tenths
from analysis.measures.metrics import gpu_hours
from analysis.read.row import Run
from analysis.stats.intervals import range_of
from analysis.tables.bases import columns_of
from analysis.tables.columns import PLACE, POINT, SERIES, of_point
from analysis.tables.point import Point

COLUMNS = table(
    *SERIES,
    *PLACE,
    *of_point("gpus", "global_batch", "batch_per_gpu"),
    *(Column(name, COUNT) for name in ("seed", "repeat", "step", "samples")),
    *(Column(name, REAL) for name in ("epochs", "train_seconds", "wall_seconds", "evaluation_seconds", "gpu_hours")),
    *(Column(name, REAL) for name in ("joules", "accuracy", "loss")),
    Column("test_samples", COUNT),
    POINT["marks"],
    Column("run_id", TEXT),
)
_NOT_ALL = "until the target accuracy; low and high alone are those of the runs that reached it, if not all did"
_LAST = "at the last evaluation; mean and range over the seeds"
POINT_COLUMNS = table(
    figure("accuracy", "1", f"test accuracy, as a fraction, {_LAST}", "Test accuracy", tenths, RANGE, "basis"),
    figure("loss", "1", f"test cross-entropy {_LAST}", "Test loss", number, RANGE, "basis"),
    figure(
        "samples",
        "samples",
        "training samples seen before the last evaluation",
        "Samples seen",
        count,
        RANGE,
        "basis",
        "Samples",
    ),
    figure("epochs", "epochs", "passes over the training samples", "Epochs", number, RANGE, "basis"),
    figure("best", "1", "the highest accuracy of any evaluation of any run", "Best", tenths),
    figure(
        "to_train_seconds",
        "s",
        f"training time {_NOT_ALL}",
        "Training until there",
        duration,
        RANGE,
        "to_basis",
        short="Training",
    ),
    figure("to_samples", "samples", f"training samples {_NOT_ALL}", "Samples", count, RANGE, "to_basis"),
    figure("to_epochs", "epochs", f"epochs {_NOT_ALL}", "Epochs", number, RANGE, "to_basis"),
    figure(
        "to_gpu_hours", "GPU h", f"GPU-hours, rank-hours on CPUs, {_NOT_ALL}", "GPU-hours", number, RANGE, "to_basis"
    ),
    figure("to_joules", "J", f"energy of the devices {_NOT_ALL}", "Energy", energy, RANGE, "to_basis"),
    Column("seeds", COUNT, "seeds", "Seeds", least=1),
    Column("runs", COUNT, "runs; null without a target accuracy"),
    Column("reached", COUNT, "runs that reached the target accuracy; null without a target"),
)
# Costs of reaching a target.
COSTS = ("train_seconds", "samples", "epochs", "gpu_hours", "joules")


@dataclass(frozen=True)
class Learning:
    """rows: keys of COLUMNS, one per completed run and evaluation, in the order of the points. target: accuracy whose
    cost is requested, or None. points: one per point with an evaluated run: the point, and

    - seeds: their number; curves: the evaluations of each of its runs, as rows;
    - accuracy, loss, samples, epochs: of the last evaluations: means over the seeds, of the means of each seed's runs;
      _low and _high: their range over several seeds;
    - with a target: runs, reached: how many there are, and how many reached it; best: the highest accuracy of any; and
      `to_<cost>`: its mean if all runs reached it, with _low and _high over the runs that did.
    """

    rows: tuple[Mapping[str, Any], ...]
    points: tuple[Mapping[str, Any], ...]
    target: float | None

    @property
    def has_curves(self) -> bool:
        return any(len(curve) > 1 for point in self.points for curve in point["curves"])

    @property
    def asked_for(self) -> bool:
        """Return whether there is more than the last accuracy of a single seed, which the table of points has."""
        return bool(self.points) and (
            self.target is not None or self.has_curves or any(point["seeds"] > 1 for point in self.points)
        )


def learning_of(points: Sequence[Point], target: float | None) -> Learning:
    """points: from `analysis.measures.speedup`."""
    rows: list[Mapping[str, Any]] = []
    found = []
    for point in points:
        members = [run for run in point.completed if run.evaluations_json]
        curves = [_curve(run, point) for run in sorted(members, key=lambda run: (run.seed, run.repeat))]
        rows += [row for curve in curves for row in curve]
        if curves:
            found.append({"point": point, "curves": curves, **_last(curves), **_to_target(curves, target)})
    return Learning(tuple(rows), tuple(found), target)


def _curve(run: Run, point: Point) -> list[dict[str, Any]]:
    shared = {name: value for name, value in point.row().items() if name in COLUMNS}
    shared |= {"run_id": run.run_id, "seed": run.seed, "repeat": run.repeat, "marks": point.marks}
    return [
        {
            **shared,
            **entry,
            "epochs": entry["samples"] / run.train_samples if run.train_samples else None,
            "gpu_hours": None if entry["train_seconds"] is None else gpu_hours(point.gpus, entry["train_seconds"]),
        }
        for entry in run.evaluations
    ]


def _last(curves: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    by_seed: dict[int, list[Mapping[str, Any]]] = {}
    for curve in curves:
        by_seed.setdefault(curve[-1]["seed"], []).append(curve[-1])
    columns: dict[str, Any] = {"seeds": len(by_seed)}
    for name in ("accuracy", "loss", "samples", "epochs"):
        # Each seed counts once, however often it was repeated.
        of_seeds = [range_of([last[name] for last in lasts]) for lasts in by_seed.values()]
        columns |= columns_of(name, range_of([None if one is None else one.estimate for one in of_seeds]))
    return columns


def _to_target(curves: Sequence[Sequence[Mapping[str, Any]]], target: float | None) -> dict[str, Any]:
    if target is None:
        return {}
    first = [next((row for row in curve if row["accuracy"] >= target), None) for curve in curves]
    reached = [row for row in first if row is not None]
    columns: dict[str, Any] = {"runs": len(curves), "reached": len(reached)}
    columns["best"] = max(row["accuracy"] for curve in curves for row in curve)
    for name in COSTS:
        costs = [row[name] for row in reached]
        ranged = columns_of(f"to_{name}", range_of(costs))
        if costs and len(reached) < len(curves) and None not in costs:
            # A mean over only the runs that reached it would be biased towards fast runs.
            ranged = {f"to_{name}": None, f"to_{name}_low": min(costs), f"to_{name}_high": max(costs)}
        columns |= ranged
    return columns
