"""Whether a measurement held still: blocks far from the others, and drift. Nothing is removed for it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from statistics import fmean, quantiles
from typing import Any, NamedTuple

from analysis.issue_time import LAUNCH_BOUND, is_launch_bound, issue_notes
from analysis.logged import Block
from analysis.packed_blocks import packed, unpacked
from analysis.statistics import Estimate, block_error
from analysis.text import gpus_text, percent, probability_text

DRIFT, THROTTLED, FELL_BACK = "drift", "throttled", "fell back"
# A trend is called drift where chance alone would rarely make it, and where it is large enough to matter.
DRIFT_LEVEL, DRIFT_FRACTION = 0.01, 0.02
FEWEST_VALUES = 6  # of fewer, no order of theirs is as rare as DRIFT_LEVEL asks
# Neighbouring blocks of long runs are averaged into so many: it keeps a trend, and weakens what makes neighbours alike.
MOST_VALUES = 40
# Between runs: how many times what the blocks let expect. Chance alone does it to two runs in 1 of 370 cases.
WIDER = 3.0
FENCE = 1.5  # interquartile ranges beyond the quartiles (Tukey, Exploratory Data Analysis, 1977)


STEADINESS_NOTE = (
    "All measured blocks count in every figure. Outside the fences: blocks farther than 1.5 interquartile ranges from "
    "the quartiles of their run (Tukey). Drift: a trend of the step time over the blocks of a run, or over "
    f"{FEWEST_VALUES} runs or more in the order of their starts, that the Mann-Kendall test sees (p < {DRIFT_LEVEL:g}) "
    f"and that moved it by more than {percent(DRIFT_FRACTION)} (Theil-Sen). Intervals, tests, and how the twelve rules "
    "of Hoefler and Belli (SC'15) are kept: docs/method.md."
)


class Trend(NamedTuple):
    """change: from the first to the last value along the Theil-Sen line, by the median. probability: two-sided p value
    of the Mann-Kendall test."""

    change: float
    probability: float

    @property
    def is_drift(self) -> bool:
        return self.probability < DRIFT_LEVEL and abs(self.change) > DRIFT_FRACTION


def steadiness_columns(blocks: Sequence[Block]) -> dict[str, Any]:
    """Of the measured blocks of a run, in the order of time."""
    seconds, samples = [block.seconds for block in blocks], [block.samples for block in blocks]
    columns: dict[str, Any] = {"blocks": packed(blocks), "measured_blocks": len(blocks)}
    per_step = [block.seconds / block.n for block in blocks]
    columns["outlier_blocks"] = len(outliers(per_step))
    if found := trend([float(block.step) for block in blocks], per_step):
        columns |= {"drift": found.change, "drift_probability": found.probability}
    if error := block_error(seconds, samples):
        columns |= dict(zip(("blocks_error", "blocks_freedom"), error, strict=True))
    return columns


def step_seconds(run: Mapping[str, Any]) -> list[float]:
    """Of each measured block of a run, in the order of time: seconds per step."""
    blocks = unpacked(run["blocks"])
    return [seconds / n for seconds, n in zip(blocks.seconds, blocks.steps, strict=True)]


def outliers(values: Sequence[float]) -> list[int]:
    """The indices of values outside Tukey's fences; none of fewer than four values, which have no quartiles."""
    if len(values) < 4:
        return []
    first, _, third = quantiles(values, n=4, method="inclusive")
    reach = FENCE * (third - first)
    return [i for i, value in enumerate(values) if not first - reach <= value <= third + reach]


def trend(times: Sequence[float], values: Sequence[float]) -> Trend | None:
    """The Mann-Kendall test (Mann, Econometrica 13, 1945), normal approximation with its correction for ties, and the
    slope of Theil and Sen (Sen, JASA 63, 1968). None of fewer than FEWEST_VALUES, or where they have no median.

    times ascend. There is no correction for neighbours that are alike (Yue and Wang, Water Resources Management 18,
    2004): it was tried, and hides what it is to find, a step or a curve of the step time.
    """
    import numpy as np

    if len(values) < FEWEST_VALUES:
        return None
    groups = min(len(values), MOST_VALUES)
    x, y = np.asarray(times, float), np.asarray(values, float)
    if len(y) > groups:
        x, y = (np.array([part.mean() for part in np.array_split(all_, groups)]) for all_ in (x, y))
    middle = float(np.median(y))
    early, late = _pairs(groups)
    spans, rises = x[late] - x[early], y[late] - y[early]
    if not middle > 0 or not (spans > 0).all():
        return None
    slope = float(np.median(rises / middle / spans))
    score = float(np.sign(rises).sum())
    ties = np.unique(y, return_counts=True)[1]
    variance = (_kendall(groups) - float(_kendall(ties).sum())) / 18
    if not variance:
        return Trend(0.0, 1.0)
    z = max(0.0, abs(score) - 1) / math.sqrt(variance)
    return Trend(slope * float(x[-1] - x[0]), math.erfc(z / math.sqrt(2)))


def run_notes(columns: Mapping[str, Any]) -> list[str]:
    """What a reader should know of a run's step times."""
    found = _trend_of(columns)
    return [f"{DRIFT}: {_moved(found)} over its measured blocks"] if found and found.is_drift else []


def point_marks(completed: Sequence[Mapping[str, Any]]) -> list[str]:
    """Of a point's completed runs: whether one of them drifted, or they did from the first to the last; whether a GPU
    of theirs lowered its clocks; and whether something was not done as it was asked for."""
    within = any(found is not None and found.is_drift for found in map(_trend_of, completed))
    between = _between(completed)
    drifted = within or (between is not None and between.is_drift)
    throttled = any(_throttled(run)[0] for run in completed)
    fell_back = any(run.get("fallbacks") for run in completed)
    bound = any(map(is_launch_bound, completed))
    found = ((DRIFT, drifted), (THROTTLED, throttled), (FELL_BACK, fell_back), (LAUNCH_BOUND, bound))
    return [mark for mark, has in found if has]


def point_notes(completed: Sequence[Mapping[str, Any]], estimate: Estimate) -> list[str]:
    """What a reader should know of how a point's runs differ."""
    notes = []
    drifted = sum(found is not None and found.is_drift for found in map(_trend_of, completed))
    if drifted:
        notes.append(f"the step time drifted within {drifted} of {len(completed)} runs")
    between = _between(completed)
    if between is not None and between.is_drift:
        notes.append(f"{DRIFT} between runs: {_moved(between)} from the first to the last of {len(completed)} runs")
    notes += dict.fromkeys(what for run in completed for what in json.loads(run.get("fallbacks") or "[]"))
    notes += issue_notes(completed)
    shares, reasons = zip(*map(_throttled, completed), strict=True)
    if max(shares):
        why = ", ".join(sorted({reason for listed in reasons for reason in listed}))
        notes.append(f"GPUs lowered their clocks ({why}) in up to {percent(max(shares))} of a run's samples")
    within = _within_error(completed)
    if estimate.runs > 1 and within is not None and estimate.reason is None:
        from_run_to_run = estimate.error * math.sqrt(estimate.runs)
        if from_run_to_run > WIDER * within:
            notes.append(
                f"the runs differ by {percent(from_run_to_run, 1)} (standard deviation), their blocks would let expect "
                f"{percent(within, 1)}: a single run looks surer than it is"
            )
    return notes


def steadiness_lines(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """The notes of the points, for the terminal."""
    return [
        f"{point['label']}{' [' + point['detail'] + ']' if point['detail'] else ''}, "
        f"{gpus_text(point['gpus'], point['device'])}: {point['notes']}"
        for point in points
        if point["notes"]
    ]


def _throttled(run: Mapping[str, Any]) -> tuple[float, list[str]]:
    """(share of the samples of its devices' state that give a reason for lower clocks, the reasons), as the run
    recorded them (column `resources`); (0, []) where it recorded none."""
    device = json.loads(run.get("resources") or "{}").get("device") or {}
    return device.get("throttled") or 0.0, device.get("throttle") or []


def _within_error(runs: Sequence[Mapping[str, Any]]) -> float | None:
    """The standard error, relative, that the blocks of one of these runs promise; None where one has too few."""
    errors = [run["blocks_error"] for run in runs]
    return None if None in errors else math.sqrt(fmean(error**2 for error in errors))


def _trend_of(run: Mapping[str, Any]) -> Trend | None:
    return None if run.get("drift") is None else Trend(run["drift"], run["drift_probability"])


def _between(completed: Sequence[Mapping[str, Any]]) -> Trend | None:
    """Of the runs' step times, in the order in which they were started; None where that is not known of one."""
    if any(run["started"] is None for run in completed):
        return None
    runs = sorted(completed, key=lambda run: run["started"])
    return trend([float(i) for i in range(len(runs))], [run["seconds"] / run["steps"] for run in runs])


def _moved(found: Trend) -> str:
    verb = "rose" if found.change > 0 else "fell"
    p = probability_text(found.probability)
    return f"the step time {verb} by {percent(abs(found.change), 1)} (Mann-Kendall, p {p})"


@cache
def _pairs(n: int) -> Any:
    """The indices of the earlier and the later of all pairs of n values."""
    import numpy as np

    return np.triu_indices(n, 1)


def _kendall(n: Any) -> Any:
    """18 times the variance of the Mann-Kendall score of n values in any order."""
    return n * (n - 1) * (2 * n + 5)
