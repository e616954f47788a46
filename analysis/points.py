"""The table of points, and what each point is relative to.

A point is all completed runs that differ only in seed and repeat. A series is all points that differ only in the
number of GPUs, their placement, and the batch that follows from it (the global batch in weak scaling, the batch per
GPU in strong scaling). Speedup and efficiency are relative to the framework alone: the strategy `plain` at one GPU, the
same in all else; where the study has no such point, to the smallest measured number of GPUs of the series.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from analysis.breakdown import COMMUNICATION, DATA, Parts, parts_of_runs
from analysis.metrics import efficiency, goodput, speedup, throughput
from analysis.read import frame_of, records
from analysis.run import COMPLETED
from analysis.series import PLAIN, name_series, natural_order, without_strategy
from analysis.statistics import Estimate, of_one_run, of_runs, rate_ratio
from analysis.steadiness import point_marks, point_notes
from analysis.text import versions_text
from harness.spec import DALI, EMULATED

if TYPE_CHECKING:
    import pandas as pd

OVERSUBSCRIBED, BASELINE_OVERSUBSCRIBED = "oversubscribed", "baseline oversubscribed"
WORK_DIFFERS, BASELINE_WORK_DIFFERS = "work differs", "baseline work differs"
# What a point takes over from the one that it is relative to, and in which words.
BASELINE_MARKS = {OVERSUBSCRIBED: BASELINE_OVERSUBSCRIBED, WORK_DIFFERS: BASELINE_WORK_DIFFERS}
SINGLE_RUN, MIXED_CODE, MIXED_MACHINES = "single run", "mixed code versions", "mixed machines"
OWN_BASELINE = "it is what the others are relative to"
# Of a run that went on from a checkpoint, its measurement is not of one piece.
CONTINUED, FAULT_INJECTED, PROFILED = "continued", "fault injected", "profiled"
# Its images have slightly other pixel values than with the other input pipelines.
DECODED_BY_DALI = "decoded by DALI"
# The step time was still changing when the timed steps began; runs whose accuracies are averaged took other steps.
NOT_STATIONARY, UNEQUAL_TRAINING = "not stationary", "unequal training"
# Each test image was scored in several views: no accuracy to set beside one of images as they are.
SEVERAL_VIEWS = "accuracy of several views"

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


def points_of(runs: pd.DataFrame, differing: Collection[str] = ()) -> pd.DataFrame:
    """One row per point, columns POINT_COLUMNS; points without a completed run are there, without figures.

    differing: points, as runs name them, whose work is not that of the others (analysis/equal_work.py). Runs whose spec
    could not be read belong to no point. Rows are ordered by series, then by GPUs and nodes.
    """
    by_point: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in records(runs):
        if run["point"] is not None:
            by_point[run["point"]].append(run)
    series: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for key, group in by_point.items():
        series[group[0]["series"]].append(_point(group, key in differing))
    for points in series.values():
        points.sort(key=lambda point: (point["gpus"], point["nodes"]))
    names = name_series({key: points[0] for key, points in series.items()})
    alone = _alone(series)
    rows = []
    for key in sorted(series, key=lambda key: (*map(natural_order, names[key]), key)):
        label, detail = names[key]
        base = alone.get(without_strategy(key)) or next(filter(_measured, series[key]), None)
        rows += [{"label": label, "detail": detail, **row} for row in _series_rows(series[key], base)]
    return frame_of(rows, POINT_COLUMNS)


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
    machines = {name for run in completed for name in json.loads(run["device_names"] or "[]")}
    marks = []
    if len({run["code_version"] for run in completed}) > 1:
        marks.append(MIXED_CODE)
    if len(machines) > 1:
        marks.append(MIXED_MACHINES)
    return [_related(point, base, marks) for point in points]


def _related(point: dict[str, Any], base: dict[str, Any] | None, series_marks: list[str]) -> dict[str, Any]:
    """The point with what follows from its series: speedup, efficiency and the marks of the whole series."""
    marks = list(point["marks"])
    columns: dict[str, Any] = {}
    if base is not None and _measured(point):
        rate, base_rate = point["samples_per_second"], base["samples_per_second"]
        ideal = point["gpus"] / base["gpus"]
        low, high, basis = rate_ratio(point["estimate"], base["estimate"]).interval()
        if point is base:
            low, high, basis = None, None, f"no interval: {OWN_BASELINE}"
        columns = {
            "relative_to_gpus": base["gpus"],
            "relative_to_strategy": base["strategy"],
            "ideal_speedup": ideal,
            "speedup": speedup(rate, base_rate),
            "speedup_low": low,
            "speedup_high": high,
            "speedup_basis": basis,
            "efficiency": efficiency(rate, point["gpus"], base_rate, base["gpus"]),
            "efficiency_low": None if low is None else low / ideal,
            "efficiency_high": None if high is None else high / ideal,
            "efficiency_basis": basis,
        }
        marks += series_marks
        if point is not base:
            marks += [mark for own, mark in BASELINE_MARKS.items() if own in base["marks"]]
    return {**point, **columns, "marks": ";".join(marks) or None}


def _point(group: list[dict[str, Any]], work_differs: bool) -> dict[str, Any]:
    completed = [run for run in group if run["status"] == COMPLETED]
    kept = ("series", "framework", "strategy", "model", "dataset", "precision", "scaling", "cluster", "device")
    counts = ("gpus", "nodes", "ranks_per_node", "global_batch", "batch_per_gpu")
    oversubscribed = _distinct(run["oversubscribed"] for run in (completed or group))
    devices = _distinct(name for run in completed for name in json.loads(run["device_names"] or "[]"))
    marks = [mark for mark, has in ((OVERSUBSCRIBED, oversubscribed), (WORK_DIFFERS, work_differs)) if has]
    if group[0]["framework"] == EMULATED:
        marks.append(EMULATED)
    if group[0]["fault"] is not None:
        marks.append(FAULT_INJECTED)
    spec = json.loads(group[0]["point"])
    if "trace" in spec:
        marks.append(PROFILED)
    if spec.get("data", {}).get("pipeline") == DALI:
        marks.append(DECODED_BY_DALI)
    if len(completed) == 1:
        marks.append(SINGLE_RUN)
    if any(run["continued"] for run in completed):
        marks.append(CONTINUED)
    marks += point_marks(completed)
    if any(run["stationary"] is False for run in completed):
        marks.append(NOT_STATIONARY)
    if len({run["samples_seen"] for run in completed if run["accuracy"] is not None}) > 1:
        marks.append(UNEQUAL_TRAINING)
    if _several_views(group[0]["point"]) and any(run["accuracy"] is not None for run in completed):
        marks.append(SEVERAL_VIEWS)
    others = [f"{run['run_id']}: {run['status']}, {run['reason']}" for run in group if run["status"] != COMPLETED]
    return {
        **{name: group[0][name] for name in (*kept, *counts)},
        **_measured_columns(completed),
        **_goodput_columns(completed),
        "status": _status_text(run["status"] for run in group),
        "reasons": "; ".join(others) or None,
        "run_ids": ";".join(run["run_id"] for run in group),
        "completed": completed,
        "runs_completed": len(completed),
        "runs_all": len(group),
        "marks": marks,
        "oversubscribed": "; ".join(oversubscribed) or None,
        "device_names": ";".join(devices) or None,
        "communication": " / ".join(_distinct(run["communication"] for run in completed)) or None,
        "versions": versions_text(json.loads(run["versions"] or "{}") for run in completed) or None,
        "code_versions": ";".join(_distinct(run["code_version"] for run in (completed or group))),
    }


def _measured_columns(completed: list[dict[str, Any]]) -> dict[str, Any]:
    if not completed:
        return {"samples_per_second": None}
    estimate = estimate_of(completed)
    low, high, basis = estimate.rate_interval()
    rates = [run["samples"] / run["seconds"] for run in completed]
    accuracies = [run["accuracy"] for run in completed if run["accuracy"] is not None]
    step_seconds = _mean_step(completed)
    parts = parts_of_runs(completed, step_seconds)
    seconds = {} if parts is None else {name: part.value for name, part in parts.seconds.items()}
    return {
        "estimate": estimate,
        "samples_per_second": throughput(cost(run) for run in completed),
        "samples_per_second_low": low,
        "samples_per_second_high": high,
        "samples_per_second_basis": basis,
        "samples_per_second_min": min(rates),
        "samples_per_second_max": max(rates),
        "blocks": sum(run["measured_blocks"] for run in completed),
        "outlier_blocks": sum(run["outlier_blocks"] for run in completed),
        "notes": "; ".join(point_notes(completed, estimate)) or None,
        "step_seconds": step_seconds,
        "cached_batch_seconds": _mean(run["cached_batch_seconds"] for run in completed),
        "no_sync_seconds": _mean(run["no_sync_seconds"] for run in completed),
        "data_stall_seconds": seconds.get(DATA),
        "exposed_communication_seconds": seconds.get(COMMUNICATION),
        "allreduce": _messages(completed, parts),
        "startup_seconds": _mean(run["startup_seconds"] for run in completed),
        "first_step_seconds": _mean(run["first_step_seconds"] for run in completed),
        "first_block_seconds": _mean(run["first_block_seconds"] for run in completed),
        "staleness_mean": _mean(run["staleness_mean"] for run in completed),
        "staleness_max": max(
            (run["staleness_max"] for run in completed if run["staleness_max"] is not None), default=None
        ),
        "test_accuracy": _mean(accuracies),
        "test_accuracy_low": min(accuracies) if len(accuracies) > 1 else None,
        "test_accuracy_high": max(accuracies) if len(accuracies) > 1 else None,
        "test_accuracy_basis": f"range of {len(accuracies)} runs" if len(accuracies) > 1 else None,
        "test_samples": _common(run["test_samples"] for run in completed),
        "samples_seen": _common(run["samples_seen"] for run in completed),
    }


def _several_views(key: str) -> bool:
    """Of each test image, by the key of a point."""
    return json.loads(key)["measure"].get("evaluate_views", 1) != 1


def cost(run: Mapping[str, Any]) -> float:
    """Seconds per sample of a completed run: what the intervals and tests are made of."""
    return run["seconds"] / run["samples"]


def estimate_of(completed: Sequence[Mapping[str, Any]]) -> Estimate:
    """Seconds per sample of a point, from its completed runs; of a single one from its blocks."""
    if len(completed) > 1:
        return of_runs([cost(run) for run in completed])
    (run,) = completed
    return of_one_run(cost(run), run["blocks_error"], run["blocks_freedom"], run["measured_blocks"])


def _goodput_columns(completed: list[dict[str, Any]]) -> dict[str, Any]:
    """attempts: of all completed runs together. Low and high: of the runs, where there is more than one."""
    if not completed:
        return {}
    rates = [goodput([run["useful_seconds"]], [run["allocated_seconds"]]) for run in completed]
    known = [rate for rate in rates if rate is not None]
    ranged = len(known) == len(rates) > 1
    return {
        "goodput": goodput((r["useful_seconds"] for r in completed), (r["allocated_seconds"] for r in completed)),
        "goodput_low": min(known) if ranged else None,
        "goodput_high": max(known) if ranged else None,
        "goodput_basis": f"range of {len(known)} runs" if ranged else None,
        "attempts": sum(run["attempts"] for run in completed),
    }


def _mean_step(completed: list[dict[str, Any]]) -> float:
    """Of several runs, each counts once, however many steps it took."""
    return fmean(run["seconds"] / run["steps"] for run in completed)


def _messages(completed: list[dict[str, Any]], parts: Parts | None) -> str | None:
    """Seconds of an allreduce by the bytes of its message, as JSON [{"bytes":, "seconds":}]: of the gradients' size as
    it stands among the parts; the mean over the runs of others, which older logs may hold."""
    by_size: dict[int | None, list[float]] = defaultdict(list)
    for run in completed:
        for message in json.loads(run["allreduce"] or "[]"):
            by_size[message["bytes"]].append(message["seconds"])
    seconds = {n: fmean(by_size[n]) for n in sorted(by_size, key=lambda n: n or 0)}
    if parts is not None and parts.allreduce is not None:
        seconds[parts.allreduce_bytes] = parts.allreduce.value
    return json.dumps([{"bytes": n, "seconds": s} for n, s in seconds.items()]) if seconds else None


def _status_text(statuses: Iterable[str]) -> str:
    """'completed' where all runs are; otherwise how many ended how."""
    counted = Counter(statuses)
    if len(counted) == 1:
        return next(iter(counted))
    return ", ".join(f"{n} {status}" for status, n in sorted(counted.items()))


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _common(values: Iterable[int | None]) -> int | None:
    """The value that all runs share; None where they differ, since no one number would be true of the point."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def _distinct(values: Iterable[str | None]) -> list[str]:
    return sorted({value for value in values if value})
