"""The table of points, each with its speedup and efficiency, and what they are relative to.

Speedup and efficiency are relative to the framework alone: the strategy `plain` at one GPU, the same in all else; where
the study has no such point, to the smallest measured number of GPUs of the series.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from analysis.base.constants import PLAIN
from analysis.measures.breakdown import COMMUNICATION, DATA, Parts, parts_of_runs
from analysis.measures.metrics import efficiency, speedup
from analysis.read.row import Run
from analysis.stats.estimates import rate_ratio
from analysis.stats.intervals import Interval
from analysis.tables.bases import basis_text, columns_of
from analysis.tables.points import measured_series, step_seconds_of
from analysis.tables.series import name_series, natural_order, without_strategy
from analysis.tables.warnings import BASELINE_MARKS, series_marks

OWN_BASELINE = "it is what the others are relative to"

POINT_COLUMNS = {
    **dict.fromkeys(["series", "label", "detail", "framework", "strategy", "model", "dataset", "precision"], "string"),
    **dict.fromkeys(["scaling", "cluster", "device", "device_names", "communication", "versions"], "string"),
    **dict.fromkeys(["gpus", "nodes", "ranks_per_node", "global_batch", "batch_per_gpu"], "Int64"),
    **dict.fromkeys(["code_versions", "status", "reasons", "run_ids", "marks", "notes"], "string"),
    **dict.fromkeys(["oversubscribed", "relative_to_strategy"], "string"),
    **dict.fromkeys(["runs_completed", "runs_all", "relative_to_gpus", "test_samples", "samples_seen"], "Int64"),
    **dict.fromkeys(["samples_per_second", "samples_per_second_low", "samples_per_second_high"], "Float64"),
    **dict.fromkeys(["samples_per_second_min", "samples_per_second_max"], "Float64"),
    **dict.fromkeys(["samples_per_second_basis", "speedup_basis", "efficiency_basis"], "string"),
    **dict.fromkeys(["test_accuracy_basis", "goodput_basis"], "string"),
    **dict.fromkeys(["blocks", "outlier_blocks"], "Int64"),
    **dict.fromkeys(["speedup", "speedup_low", "speedup_high", "ideal_speedup"], "Float64"),
    **dict.fromkeys(["efficiency", "efficiency_low", "efficiency_high"], "Float64"),
    **dict.fromkeys(["test_accuracy", "test_accuracy_low", "test_accuracy_high"], "Float64"),
    **dict.fromkeys(["goodput", "goodput_low", "goodput_high"], "Float64"),
    "attempts": "Int64",
    **dict.fromkeys(["step_seconds", "cached_batch_seconds", "no_sync_seconds"], "Float64"),
    **dict.fromkeys(["data_stall_seconds", "exposed_communication_seconds"], "Float64"),
    **dict.fromkeys(["startup_seconds", "first_step_seconds", "first_block_seconds"], "Float64"),
    "allreduce": "string",
    "staleness_mean": "Float64",
    "staleness_max": "Int64",
}


def points_of(runs: Iterable[Run], differing: Collection[str] = ()) -> list[dict[str, Any]]:
    """One row per point, keys of POINT_COLUMNS and of `measured_series`; points without a completed run are there,
    without figures. Marks and the ids of the runs are tuples.

    differing: points, as runs name them, whose work is not that of the others (analysis/measures/equal_work.py). Runs
    whose spec could not be read belong to no point. Rows are ordered by series, then by GPUs and nodes.
    """
    series = measured_series(runs, differing)
    names = name_series({key: points[0] for key, points in series.items()})
    alone = _alone(series)
    rows = []
    for key in sorted(series, key=lambda key: (*map(natural_order, names[key]), key)):
        label, detail = names[key]
        base = alone.get(without_strategy(key)) or next(filter(_measured, series[key]), None)
        rows += [
            {**dict.fromkeys(POINT_COLUMNS), "label": label, "detail": detail, **row}
            for row in _series_rows(series[key], base)
        ]
    return rows


def _alone(series: Mapping[str, list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """The measured points of a framework alone at one GPU, by what the series that are relative to them share."""
    found: dict[str, dict[str, Any]] = {}
    for key, points in series.items():
        for point in points:
            if point["strategy"] == PLAIN and point["gpus"] == 1 and _measured(point):
                found.setdefault(without_strategy(key), point)
    return found


def _measured(point: Mapping[str, Any]) -> bool:
    return point["samples_per_second"] is not None


def _series_rows(points: list[dict[str, Any]], base: dict[str, Any] | None) -> list[dict[str, Any]]:
    completed = [run for point in points for run in point["completed"]]
    if base is not None and all(point is not base for point in points):
        completed += base["completed"]
    marks = series_marks(completed)
    return [_related(point, base, marks) for point in points]


def _related(point: dict[str, Any], base: dict[str, Any] | None, of_series: list[str]) -> dict[str, Any]:
    """The point with what follows from its series: speedup, efficiency and the marks of the whole series."""
    marks = list(point["marks"])
    columns: dict[str, Any] = {}
    if base is not None and _measured(point):
        rate, base_rate = point["samples_per_second"], base["samples_per_second"]
        ideal = point["gpus"] / base["gpus"]
        ratio = rate_ratio(point["estimate"], base["estimate"]).interval()
        basis = basis_text(ratio)
        if point is base:
            ratio, basis = Interval(ratio.estimate), f"no interval: {OWN_BASELINE}"
        kept = efficiency(rate, point["gpus"], base_rate, base["gpus"])
        columns = {
            "relative_to_gpus": base["gpus"],
            "relative_to_strategy": base["strategy"],
            "ideal_speedup": ideal,
            **columns_of("speedup", ratio._replace(estimate=speedup(rate, base_rate))),
            "speedup_basis": basis,
            **columns_of("efficiency", ratio.mapped(lambda value: value / ideal)._replace(estimate=kept)),
            "efficiency_basis": basis,
        }
        marks += of_series
        if point is not base:
            marks += [mark for own, mark in BASELINE_MARKS.items() if own in base["marks"]]
    return {**point, **_parts_columns(point["completed"]), **columns, "marks": tuple(marks)}


def _parts_columns(completed: Sequence[Run]) -> dict[str, Any]:
    if not completed:
        return {}
    parts = parts_of_runs(completed, step_seconds_of(completed))
    seconds = {} if parts is None else {name: part.estimate for name, part in parts.seconds.items()}
    return {
        "data_stall_seconds": seconds.get(DATA),
        "exposed_communication_seconds": seconds.get(COMMUNICATION),
        "allreduce": _messages(completed, parts),
    }


def _messages(completed: Sequence[Run], parts: Parts | None) -> str | None:
    """Seconds of an allreduce by the bytes of its message, as JSON [{"bytes":, "seconds":}]: of the gradients' size as
    it stands among the parts; the mean over the runs of others, which older logs may hold."""
    by_size: dict[int | None, list[float]] = defaultdict(list)
    for run in completed:
        for message in run.allreduce:
            by_size[message["bytes"]].append(message["seconds"])
    seconds = {n: fmean(by_size[n]) for n in sorted(by_size, key=lambda n: n or 0)}
    if parts is not None and parts.allreduce is not None:
        seconds[parts.allreduce_bytes] = parts.allreduce.estimate
    return json.dumps([{"bytes": n, "seconds": s} for n, s in seconds.items()]) if seconds else None
