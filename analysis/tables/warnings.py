"""Warnings of a point, to know before using its figures, and notes with details."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from analysis.base.constants import IMPORTED
from analysis.base.text import percent
from analysis.read.columns.issue_time import LAUNCH_BOUND, is_launch_bound, issue_notes
from analysis.read.columns.steadiness import DRIFT, moved
from analysis.read.row import Run
from analysis.stats.estimates import Estimate
from analysis.stats.stability import Trend, trend
from analysis.tables.pairing import spec_of
from harness.core.measuring.precision import ENOUGH_TIMES
from harness.core.spec import DALI, EMULATED

OVERSUBSCRIBED, BASELINE_OVERSUBSCRIBED = "oversubscribed", "baseline oversubscribed"
WORK_DIFFERS, BASELINE_WORK_DIFFERS = "work differs", "baseline work differs"
# Warnings of the baseline that apply to a point, and their wording.
BASELINE_MARKS = {OVERSUBSCRIBED: BASELINE_OVERSUBSCRIBED, WORK_DIFFERS: BASELINE_WORK_DIFFERS}
SINGLE_RUN, MIXED_CODE, MIXED_MACHINES = "single run", "mixed code versions", "mixed machines"
# A resumed run was measured in several pieces.
CONTINUED, FAULT_INJECTED, PROFILED = "continued", "fault injected", "profiled"
# Of the user's own training, between plan and start.
CODE_CHANGED = "code changed"
# Slightly different pixel values than with other input pipelines.
DECODED_BY_DALI = "decoded by DALI"
# Step time was still changing when timing began; averaged accuracies are of different numbers of steps.
NOT_STATIONARY, UNEQUAL_TRAINING = "not stationary", "unequal training"
# Asked for a precision, it ended at the limit of steps, too short for its autocorrelation. With fewer blocks, steady
# runs look like this too: of independent blocks 5 % with 30, none of 3,000 simulated series with 60.
WANDERING, FEWEST_TO_WANDER = "wandering", 50
# Each test image was scored in several views, so accuracies are not comparable with those of single views.
SEVERAL_VIEWS = "accuracy of several views"
THROTTLED, FELL_BACK = "throttled", "fell back"
# Spread between runs relative to that expected from blocks. Chance alone exceeds it for two runs in 1 of 370 cases.
WIDER = 3.0


def point_marks(group: Sequence[Run], completed: Sequence[Run], oversubscribed: bool, work_differs: bool) -> list[str]:
    """Return the warnings of a point. group: all its runs; completed: the completed ones."""
    marks = [mark for mark, has in ((OVERSUBSCRIBED, oversubscribed), (WORK_DIFFERS, work_differs)) if has]
    if group[0]["framework"] == EMULATED:
        marks.append(EMULATED)
    if group[0]["framework"] == IMPORTED:
        marks.append(IMPORTED)
    if group[0]["fault"] is not None:
        marks.append(FAULT_INJECTED)
    spec = spec_of(group[0]["point"])
    if "trace" in spec:
        marks.append(PROFILED)
    if spec.get("data", {}).get("pipeline") == DALI:
        marks.append(DECODED_BY_DALI)
    if len(completed) == 1:
        marks.append(SINGLE_RUN)
    if any(run.continued for run in completed):
        marks.append(CONTINUED)
    if any(run.code_changed for run in completed):
        marks.append(CODE_CHANGED)
    marks += steadiness_marks(completed)
    if any(run.stationary is False for run in completed):
        marks.append(NOT_STATIONARY)
    if any(map(_wanders, completed)):
        marks.append(WANDERING)
    if len({run.samples_seen for run in completed if run.accuracy is not None}) > 1:
        marks.append(UNEQUAL_TRAINING)
    if spec.get("measure", {}).get("evaluate_views", 1) != 1 and any(run.accuracy is not None for run in completed):
        marks.append(SEVERAL_VIEWS)
    return marks


def steadiness_marks(completed: Sequence[Run]) -> list[str]:
    """Return warnings of completed runs: drift within or between runs, lowered GPU clocks, and requests that were not
    honoured."""
    within = any(run.trend is not None and run.trend.is_drift for run in completed)
    between = _between(completed)
    drifted = within or (between is not None and between.is_drift)
    throttled = any(_throttled(run)[0] for run in completed)
    fell_back = any(run.fallbacks for run in completed)
    bound = any(map(is_launch_bound, completed))
    found = ((DRIFT, drifted), (THROTTLED, throttled), (FELL_BACK, fell_back), (LAUNCH_BOUND, bound))
    return [mark for mark, has in found if has]


def series_marks(completed: Sequence[Run]) -> list[str]:
    """Return the warnings of all completed runs of a series and of its baseline."""
    marks = []
    if len({run.code_version for run in completed}) > 1:
        marks.append(MIXED_CODE)
    if len({name for run in completed for name in run.device_names}) > 1:
        marks.append(MIXED_MACHINES)
    return marks


def point_notes(completed: Sequence[Run], estimate: Estimate) -> list[str]:
    """Return notes on how the runs of a point differ."""
    notes = []
    drifted = sum(run.trend is not None and run.trend.is_drift for run in completed)
    if drifted:
        notes.append(f"the step time drifted within {drifted} of {len(completed)} runs")
    between = _between(completed)
    if between is not None and between.is_drift:
        notes.append(f"{DRIFT} between runs: {moved(between)} from the first to the last of {len(completed)} runs")
    wandering = [run.autocorrelation_times or 0.0 for run in completed if _wanders(run)]
    if wandering:
        notes.append(
            f"the step time wanders: {len(wandering)} of {len(completed)} runs reached measure.steps within "
            f"{min(wandering):.1f} autocorrelation times, and an interval takes {ENOUGH_TIMES}: repeat the jobs"
        )
    notes += dict.fromkeys(what for run in completed for what in run.fallbacks)
    notes += issue_notes(completed)
    shares, reasons = zip(*map(_throttled, completed), strict=True)
    if max(shares):
        why = ", ".join(sorted({reason for listed in reasons for reason in listed}))
        notes.append(f"GPUs lowered their clocks ({why}) in up to {percent(max(shares))} of a run's samples")
    within = _within_error(completed)
    if estimate.runs > 1 and within is not None and estimate.missing is None:
        from_run_to_run = estimate.relative_se * math.sqrt(estimate.runs)
        if from_run_to_run > WIDER * within:
            notes.append(
                f"the runs differ by {percent(from_run_to_run, 1)} (standard deviation), their blocks would let expect "
                f"{percent(within, 1)}: a single run looks surer than it is"
            )
    return notes


def _wanders(run: Run) -> bool:
    times = run.autocorrelation_times
    at_limit = run.precision_asked is not None and run.stopped == "limit"
    enough = (run.measured_blocks or 0) >= FEWEST_TO_WANDER
    return at_limit and enough and times is not None and times < ENOUGH_TIMES


def _throttled(run: Run) -> tuple[float, list[str]]:
    """Return (share of device samples with a reason for lower clocks, the reasons) from the column `resources`; (0, [])
    without records."""
    device = run.resources.get("device") or {}
    return device.get("throttled") or 0.0, device.get("throttle") or []


def _within_error(runs: Sequence[Run]) -> float | None:
    """Return the relative standard error that the blocks of one of these runs predict; None if there are too few."""
    errors = [run.blocks_error for run in runs if run.blocks_error is not None]
    return math.sqrt(fmean(error**2 for error in errors)) if len(errors) == len(runs) else None


def _between(completed: Sequence[Run]) -> Trend | None:
    """Return the trend of step times in the order of the runs' starts; None if a start is unknown."""
    if any(run.started is None for run in completed):
        return None
    runs = sorted(completed, key=lambda run: run.started or 0.0)
    return trend([float(i) for i in range(len(runs))], [run.step_seconds for run in runs])
