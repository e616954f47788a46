"""The figures of merit, one function each, and the table of points that they make.

A point is all completed runs that differ only in seed and repeat. A series is all points that differ only in the
number of GPUs, their placement, and the batch that follows from it (the global batch in weak scaling, the batch per
GPU in strong scaling). Speedup and efficiency are relative to the smallest measured number of GPUs of the series.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from analysis.attempts import total_if_known
from analysis.read import frame_of, records
from analysis.run import COMPLETED
from analysis.series import name_series, natural_order

if TYPE_CHECKING:
    import pandas as pd

OVERSUBSCRIBED, BASELINE_OVERSUBSCRIBED = "oversubscribed", "baseline oversubscribed"
SINGLE_RUN, MIXED_CODE, MIXED_MACHINES = "single run", "mixed code versions", "mixed machines"
# Of a run that went on from a checkpoint, its measurement is not of one piece.
CONTINUED, FAULT_INJECTED = "continued", "fault injected"

Range = tuple[float | None, float | None]

POINT_COLUMNS = {
    **dict.fromkeys(["series", "label", "detail", "framework", "strategy", "model", "dataset", "precision"], "string"),
    **dict.fromkeys(["scaling", "cluster", "device", "device_names", "code_versions"], "string"),
    **dict.fromkeys(["gpus", "nodes", "ranks_per_node", "global_batch", "batch_per_gpu"], "Int64"),
    **dict.fromkeys(["status", "reasons", "run_ids", "spread_basis", "marks", "oversubscribed"], "string"),
    **dict.fromkeys(["runs_completed", "runs_all", "relative_to_gpus", "test_samples", "samples_seen"], "Int64"),
    **dict.fromkeys(["samples_per_second", "samples_per_second_low", "samples_per_second_high"], "Float64"),
    **dict.fromkeys(["speedup", "speedup_low", "speedup_high", "ideal_speedup"], "Float64"),
    **dict.fromkeys(["efficiency", "efficiency_low", "efficiency_high"], "Float64"),
    **dict.fromkeys(["test_accuracy", "test_accuracy_low", "test_accuracy_high"], "Float64"),
    **dict.fromkeys(["goodput", "goodput_low", "goodput_high"], "Float64"),
    "attempts": "Int64",
    **dict.fromkeys(["step_seconds", "cached_batch_seconds", "no_sync_seconds"], "Float64"),
    **dict.fromkeys(["data_stall_seconds", "exposed_communication_seconds", "startup_seconds"], "Float64"),
    "allreduce": "string",
}


def throughput(samples: Iterable[float], seconds: Iterable[float]) -> float:
    """Samples per second over several runs or blocks: all samples by all seconds.

    This is the harmonic mean of the rates, weighted by samples, as rates are to be combined (Smith, CACM 31(10),
    1988; Hoefler and Belli, SC15, rule 3). An arithmetic mean would give a fast minute the weight of a slow hour.
    """
    return math.fsum(samples) / math.fsum(seconds)


def spread(run_rates: Sequence[float], block_rates: Sequence[float]) -> tuple[float | None, float | None, str | None]:
    """(low, high, basis) of a point's throughput, in samples per second; (None, None, None) where nothing varied.

    With two runs or more: the smallest and the largest of the runs. With one: the 5th and the 95th percentile of its
    blocks, which shows how steady the run was, and not what another run would give.
    """
    if len(run_rates) >= 2:
        return min(run_rates), max(run_rates), f"{len(run_rates)} runs"
    if len(block_rates) >= 2:
        return percentile(block_rates, 0.05), percentile(block_rates, 0.95), "blocks of one run"
    return None, None, None


def percentile(values: Sequence[float], fraction: float) -> float:
    """Linear between the two nearest ranks (Hyndman and Fan 1996, definition 7: NumPy's default)."""
    ordered = sorted(values)
    position = fraction * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def speedup(rate: float, base_rate: float) -> float:
    """Throughput by the throughput of the series' smallest number of GPUs m; ideal on n GPUs is n / m."""
    return rate / base_rate


def efficiency(rate: float, gpus: int, base_rate: float, base_gpus: int) -> float:
    """Parallel efficiency: throughput per GPU by that of the series' smallest number of GPUs; ideal is 1."""
    return (rate / gpus) / (base_rate / base_gpus)


def speedup_range(rates: Range, base_rates: Range) -> Range:
    """The smallest and the largest speedup that both spreads allow: a range, and not a confidence interval."""
    if None in (*rates, *base_rates) or base_rates[0] == 0:
        return None, None
    return rates[0] / base_rates[1], rates[1] / base_rates[0]  # type: ignore[operator]


def goodput(useful_seconds: Iterable[float | None], allocated_seconds: Iterable[float | None]) -> float | None:
    """Useful step time by allocated time, over several runs: all useful seconds by all allocated seconds.

    Useful are the seconds of the steps that the training consists of: warm-up, re-warm-up and measured steps, each step
    once (what an attempt had done after the checkpoint that the run went on from does not count), each block as long as
    its slowest rank took. Allocated are, summed over the attempts, the seconds from the attempt's begin to its last
    sign of life: the latest exit or event of any rank. The time between attempts, in the queue, is not allocated and
    not counted. Start-up, evaluation, probes and checkpoints are allocated but not useful.

    None where the seconds of one of the runs are not known: a part of them would be another figure.
    """
    useful, allocated = total_if_known(useful_seconds), total_if_known(allocated_seconds)
    return None if useful is None or not allocated else useful / allocated


def data_stall(step_seconds: float | None, cached_batch_seconds: float | None) -> float | None:
    """Seconds per step spent waiting for data: a full step less a step on a batch that is there already.

    Not clamped: a small negative value is noise of the measurement, and shows how large that is.
    """
    return _difference(step_seconds, cached_batch_seconds)


def exposed_communication(cached_batch_seconds: float | None, no_sync_seconds: float | None) -> float | None:
    """Seconds per step of communication that computing does not hide: a step less one without synchronisation.

    Both on a cached batch, so that data plays no part. Not clamped, for the reason given at `data_stall`.
    """
    return _difference(cached_batch_seconds, no_sync_seconds)


def points_of(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per point, columns POINT_COLUMNS; points without a completed run are there, without figures.

    Runs whose spec could not be read belong to no point. Rows are ordered by series, then by GPUs and nodes.
    """
    by_point: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for run in records(runs):
        if run["point"] is not None:
            by_point[run["point"]].append(run)
    by_series: dict[str, list[list[dict[str, Any]]]] = defaultdict(list)
    for group in by_point.values():
        by_series[group[0]["series"]].append(group)
    names = name_series({key: groups[0][0] for key, groups in by_series.items()})
    rows = []
    for key in sorted(by_series, key=lambda key: (*map(natural_order, names[key]), key)):
        label, detail = names[key]
        rows += [{"label": label, "detail": detail, **row} for row in _series_rows(by_series[key])]
    return frame_of(rows, POINT_COLUMNS)


def _series_rows(groups: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    points = sorted((_point(group) for group in groups), key=lambda p: (p["gpus"], p["nodes"]))
    base = next((point for point in points if point["samples_per_second"] is not None), None)
    completed = [run for group in groups for run in group if run["status"] == COMPLETED]
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
    if base is not None and point["samples_per_second"] is not None:
        rate, base_rate = point["samples_per_second"], base["samples_per_second"]
        ideal = point["gpus"] / base["gpus"]
        low, high = (None, None) if point is base else speedup_range(_rates(point), _rates(base))
        columns = {
            "relative_to_gpus": base["gpus"],
            "ideal_speedup": ideal,
            "speedup": speedup(rate, base_rate),
            "speedup_low": low,
            "speedup_high": high,
            "efficiency": efficiency(rate, point["gpus"], base_rate, base["gpus"]),
            "efficiency_low": None if low is None else low / ideal,
            "efficiency_high": None if high is None else high / ideal,
        }
        marks += series_marks
        if point is not base and OVERSUBSCRIBED in base["marks"]:
            marks.append(BASELINE_OVERSUBSCRIBED)
    return {**point, **columns, "marks": ";".join(marks) or None}


def _point(group: list[dict[str, Any]]) -> dict[str, Any]:
    completed = [run for run in group if run["status"] == COMPLETED]
    kept = ("series", "framework", "strategy", "model", "dataset", "precision", "scaling", "cluster", "device")
    counts = ("gpus", "nodes", "ranks_per_node", "global_batch", "batch_per_gpu")
    oversubscribed = _distinct(run["oversubscribed"] for run in (completed or group))
    devices = _distinct(name for run in completed for name in json.loads(run["device_names"] or "[]"))
    marks = [OVERSUBSCRIBED] if oversubscribed else []
    if group[0]["fault"] is not None:
        marks.append(FAULT_INJECTED)
    if len(completed) == 1:
        marks.append(SINGLE_RUN)
    if any(run["continued"] for run in completed):
        marks.append(CONTINUED)
    others = [f"{run['run_id']}: {run['status']}, {run['reason']}" for run in group if run["status"] != COMPLETED]
    return {
        **{name: group[0][name] for name in (*kept, *counts)},
        **_measured(completed),
        **_goodput_columns(completed),
        "status": _status_text(run["status"] for run in group),
        "reasons": "; ".join(others) or None,
        "run_ids": ";".join(run["run_id"] for run in group),
        "runs_completed": len(completed),
        "runs_all": len(group),
        "marks": marks,
        "oversubscribed": "; ".join(oversubscribed) or None,
        "device_names": ";".join(devices) or None,
        "code_versions": ";".join(_distinct(run["code_version"] for run in (completed or group))),
    }


def _measured(completed: list[dict[str, Any]]) -> dict[str, Any]:
    if not completed:
        return {"samples_per_second": None}
    low, high, basis = spread(
        [run["samples"] / run["seconds"] for run in completed], json.loads(completed[0]["block_rates"])
    )
    accuracies = [run["accuracy"] for run in completed if run["accuracy"] is not None]
    cached = [run for run in completed if run["cached_batch_seconds"] is not None]
    both = [run for run in cached if run["no_sync_seconds"] is not None]
    return {
        "samples_per_second": throughput((r["samples"] for r in completed), (r["seconds"] for r in completed)),
        "samples_per_second_low": low,
        "samples_per_second_high": high,
        "spread_basis": basis,
        "step_seconds": _mean_step(completed),
        "cached_batch_seconds": _mean(run["cached_batch_seconds"] for run in completed),
        "no_sync_seconds": _mean(run["no_sync_seconds"] for run in completed),
        # Differences are made within a run and then averaged, so that each compares like with like.
        "data_stall_seconds": _mean(data_stall(_mean_step([run]), run["cached_batch_seconds"]) for run in cached),
        "exposed_communication_seconds": _mean(
            exposed_communication(run["cached_batch_seconds"], run["no_sync_seconds"]) for run in both
        ),
        "allreduce": _mean_messages(completed),
        "startup_seconds": _mean(run["startup_seconds"] for run in completed),
        "test_accuracy": _mean(accuracies),
        "test_accuracy_low": min(accuracies) if len(accuracies) > 1 else None,
        "test_accuracy_high": max(accuracies) if len(accuracies) > 1 else None,
        "test_samples": _common(run["test_samples"] for run in completed),
        "samples_seen": _common(run["samples_seen"] for run in completed),
    }


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
        "attempts": sum(run["attempts"] for run in completed),
    }


def _mean_step(completed: list[dict[str, Any]]) -> float:
    return math.fsum(run["seconds"] for run in completed) / sum(run["steps"] for run in completed)


def _mean_messages(completed: list[dict[str, Any]]) -> str | None:
    """Mean seconds of an allreduce by the bytes of its message, as JSON [{"bytes":, "seconds":}]."""
    by_size: dict[int | None, list[float]] = defaultdict(list)
    for run in completed:
        for message in json.loads(run["allreduce"] or "[]"):
            by_size[message["bytes"]].append(message["seconds"])
    messages = [{"bytes": n, "seconds": fmean(by_size[n])} for n in sorted(by_size, key=lambda n: n or 0)]
    return json.dumps(messages) if messages else None


def _status_text(statuses: Iterable[str]) -> str:
    """'completed' where all runs are; otherwise how many ended how."""
    counted = Counter(statuses)
    if len(counted) == 1:
        return next(iter(counted))
    return ", ".join(f"{n} {status}" for status, n in sorted(counted.items()))


def _rates(point: Mapping[str, Any]) -> Range:
    return point["samples_per_second_low"], point["samples_per_second_high"]


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _common(values: Iterable[int | None]) -> int | None:
    """The value that all runs share; None where they differ, since no one number would be true of the point."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def _distinct(values: Iterable[str | None]) -> list[str]:
    return sorted({value for value in values if value})


def _difference(minuend: float | None, subtrahend: float | None) -> float | None:
    return None if minuend is None or subtrahend is None else minuend - subtrahend
