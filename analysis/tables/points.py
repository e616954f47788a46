"""The points of a study: identity, throughput, warnings.

A point is all runs that differ only in seed and repeat. A series is all points that differ only in the number of GPUs,
their placement, and the batch size that follows from it (the global batch in weak scaling, the batch per GPU in strong
scaling).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from statistics import fmean
from typing import Any

from analysis.base.numbers import common
from analysis.base.text import versions_text
from analysis.read.row import Run
from analysis.tables.bases import columns_of
from analysis.tables.point import Point
from analysis.tables.series import Series
from analysis.tables.throughput import estimate_of, goodput, throughput
from analysis.tables.warnings import point_marks, point_notes


def measured_series(runs: Iterable[Run], differing: Collection[str]) -> list[Series]:
    """Return the points of each series, ordered by GPUs and nodes, without figures relative to a baseline.

    differing: keys of points whose work differs (analysis/measures/equal_work.py). Runs with an unreadable spec belong
    to no point.
    """
    by_point: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run.point is not None:
            by_point[run.point].append(run)
    series: dict[str, list[Point]] = defaultdict(list)
    for key, group in by_point.items():
        series[group[0]["series"]].append(_point(group, key in differing))
    return [Series(tuple(sorted(points, key=lambda point: (point.gpus, point.nodes)))) for points in series.values()]


def _point(group: Sequence[Run], work_differs: bool) -> Point:
    completed = tuple(run for run in group if run.completed)
    kept = ("series", "framework", "strategy", "model", "dataset", "precision", "scaling", "cluster", "device")
    counts = ("gpus", "nodes", "ranks_per_node", "global_batch", "batch_per_gpu")
    oversubscribed = _distinct(run.oversubscribed for run in (completed or group))
    others = [f"{run.run_id}: {run.status}, {run.reason}" for run in group if not run.completed]
    return Point(
        **{name: group[0][name] for name in (*kept, *counts)},
        **_measured_columns(completed),
        **_goodput_columns(completed),
        status=_status_text(run.status for run in group),
        reasons="; ".join(others) or None,
        run_ids=tuple(run.run_id for run in group),
        members=tuple(group),
        completed=completed,
        runs_completed=len(completed),
        runs_all=len(group),
        marks=tuple(point_marks(group, completed, bool(oversubscribed), work_differs)),
        unit=group[0].unit or "samples",
        samples_per_step=group[0].samples_per_step or group[0].global_batch,
        oversubscribed="; ".join(oversubscribed) or None,
        device_names=tuple(_distinct(name for run in completed for name in run.device_names)),
        communication=" / ".join(_distinct(run.communication for run in completed)) or None,
        versions=versions_text(run.versions for run in completed) or None,
        code_versions=tuple(_distinct(run.code_version for run in (completed or group))),
    )


def _measured_columns(completed: Sequence[Run]) -> dict[str, Any]:
    if not completed:
        return {}
    estimate = estimate_of(completed)
    rate = estimate.rate_interval()._replace(estimate=throughput(run.seconds_per_sample for run in completed))
    rates = [run.samples_per_second for run in completed]
    accuracies = [run.accuracy for run in completed if run.accuracy is not None]
    return {
        "estimate": estimate,
        **columns_of("samples_per_second", rate, basis=True),
        "samples_per_second_min": min(rates),
        "samples_per_second_max": max(rates),
        "blocks": sum(run.measured_blocks for run in completed),
        "outlier_blocks": sum(run.outlier_blocks for run in completed),
        "notes": "; ".join(point_notes(completed, estimate)) or None,
        "step_seconds": step_seconds_if_known(completed),
        "cached_batch_seconds": _mean(run.cached_batch_seconds for run in completed),
        "no_sync_seconds": _mean(run.no_sync_seconds for run in completed),
        "startup_seconds": _mean(run.startup_seconds for run in completed),
        "first_step_seconds": _mean(run.first_step_seconds for run in completed),
        "first_block_seconds": _mean(run.first_block_seconds for run in completed),
        "staleness_mean": _mean(run.staleness_mean for run in completed),
        "staleness_max": max((run.staleness_max for run in completed if run.staleness_max is not None), default=None),
        "test_accuracy": _mean(accuracies),
        "test_accuracy_low": min(accuracies) if len(accuracies) > 1 else None,
        "test_accuracy_high": max(accuracies) if len(accuracies) > 1 else None,
        "test_accuracy_basis": f"range of {len(accuracies)} runs" if len(accuracies) > 1 else None,
        "test_samples": common(run.test_samples for run in completed),
        "samples_seen": common(run.samples_seen for run in completed),
    }


def _goodput_columns(completed: Sequence[Run]) -> dict[str, Any]:
    """Return goodput and attempts of all completed runs. low, high: range over several runs."""
    if not completed:
        return {}
    rates = [goodput([run.useful_seconds], [run.allocated_seconds]) for run in completed]
    known = [rate for rate in rates if rate is not None]
    ranged = len(known) == len(rates) > 1
    return {
        "goodput": goodput((r.useful_seconds for r in completed), (r.allocated_seconds for r in completed)),
        "goodput_low": min(known) if ranged else None,
        "goodput_high": max(known) if ranged else None,
        "goodput_basis": f"range of {len(known)} runs" if ranged else None,
        "attempts": sum(run.attempts or 0 for run in completed) or None,
    }


def step_seconds_if_known(completed: Sequence[Run]) -> float | None:
    """`step_seconds_of`, or None for imported runs without a batch."""
    if any(run.stated_cost is not None and run.samples_per_step is None for run in completed):
        return None
    return step_seconds_of(completed)


def step_seconds_of(completed: Sequence[Run]) -> float:
    """Return the mean over the runs; each counts once, however many steps it took."""
    return fmean(run.step_seconds for run in completed)


def _status_text(statuses: Iterable[str]) -> str:
    """Return the status that all runs share, else the number of runs by status."""
    counted = Counter(statuses)
    if len(counted) == 1:
        return next(iter(counted))
    return ", ".join(f"{n} {status}" for status, n in sorted(counted.items()))


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _distinct(values: Iterable[str | None]) -> list[str]:
    return sorted({value for value in values if value})
