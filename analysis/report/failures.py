"""Cost of injected faults: each point with a fault against the same point without."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from analysis.base.constants import FAULT, IMPORTED, NO_FAULT
from analysis.base.text import DASH, duration, number, percent
from analysis.read.row import Run
from analysis.tables.pairing import spec_of, without
from analysis.tables.point import Point
from analysis.tables.throughput import goodput

FAILURES_NOTE = (
    "Cost of a failure: means over the completed runs of a point, beside the same without a failure. Allocated is from "
    "the begin to the end of every attempt: a second start-up, checkpoints and steps that are done twice are in it, "
    "the time between the attempts is not. The differences are of means, without a test."
)

Runs = Sequence[Run]


def failure_costs(points: Sequence[Point]) -> list[str]:
    """One sentence per point with a fault, if it and its counterpart have completed runs."""
    by_point = {
        point.members[0]["point"]: point.completed
        for point in points
        if point.completed and point.framework != IMPORTED
    }
    whole = {without(key, FAULT): key for key in by_point if spec_of(key)[FAULT]["name"] == NO_FAULT}
    found = []
    for point in points:
        key = point.members[0]["point"]
        counterpart = whole.get(without(key, FAULT))
        if by_point.get(key) and counterpart not in (None, key):
            found.append(_sentence(point, by_point[key], by_point[str(counterpart)]))
    return found


def _sentence(point: Point, failed: Runs, whole: Runs) -> str:
    took, would = _mean(failed, "allocated_seconds"), _mean(whole, "allocated_seconds")
    cost = "not known"
    if took is not None and would is not None:
        unit = "rank" if point.device == "cpu" else "GPU"
        hours = point.gpus * (took - would) / 3600
        cost = f"{_signed(took - would)}, {number(hours)} {unit}-hours"
    return (
        f"{point.label} [{point.detail}], {point.size}: allocated {_time(took)} "
        f"instead of {_time(would)} ({cost}); goodput {_goodput(failed)} instead of {_goodput(whole)}; "
        f"{number(_mean(failed, 'lost_steps'))} steps lost, {_time(_mean(failed, 'idle_seconds'))} between attempts"
    )


def _mean(runs: Runs, name: str) -> float | None:
    """Return the mean; None if one value is unknown."""
    values = [run[name] for run in runs]
    return None if None in values else fmean(values)


def _goodput(runs: Runs) -> str:
    return percent(goodput((run.useful_seconds for run in runs), (run.allocated_seconds for run in runs)))


def _time(seconds: float | None) -> str:
    return DASH if seconds is None else "0 s" if seconds == 0 else duration(seconds)


def _signed(seconds: float) -> str:
    return f"+{duration(seconds)}" if seconds > 0 else duration(seconds)
