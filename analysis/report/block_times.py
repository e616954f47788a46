"""Every measured block of every run: what a mean and an interval do not show, and of which runs it is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from analysis.base.frames import records
from analysis.read.columns.steadiness import DRIFT, step_seconds
from analysis.read.run import COMPLETED
from analysis.tables.warnings import marks_of

if TYPE_CHECKING:
    import pandas as pd

NAME = "block_times"
# What can be told apart on paper, and a page that is still quick to open.
MOST_RUNS, MOST_BLOCKS = 60, 4000


class Strip(NamedTuple):
    """The completed runs of a point: seconds per step of each block of each, in the order of time."""

    point: Mapping[str, Any]
    runs: Sequence[Sequence[float]]

    @property
    def blocks(self) -> int:
        return sum(map(len, self.runs))


def strips_of(runs: pd.DataFrame, points: pd.DataFrame) -> list[Strip]:
    by_id = {run["run_id"]: run for run in records(runs) if run["status"] == COMPLETED}
    strips = []
    for point in records(points):
        members = [by_id[run_id] for run_id in point["run_ids"].split(";") if run_id in by_id]
        members.sort(key=lambda run: (run["started"] or 0.0, run["run_id"]))
        if members:
            strips.append(Strip(point, [step_seconds(run) for run in members]))
    return strips


def fitting(strips: Sequence[Strip]) -> list[Strip]:
    """As many as there is room for, in the order of the points; the least steady ones before the others."""

    def steadiness(strip: Strip) -> tuple[bool, float]:
        return DRIFT not in marks_of(strip.point), -strip.point["outlier_blocks"] / max(1, strip.blocks)

    kept: list[Strip] = []
    for strip in sorted(strips, key=steadiness):
        room = MOST_RUNS - sum(len(other.runs) for other in kept)
        if not kept or (len(strip.runs) <= room and sum(other.blocks for other in [*kept, strip]) <= MOST_BLOCKS):
            kept.append(strip)
    return [strip for strip in strips if any(strip is other for other in kept)]


def deviations(strip: Strip) -> list[list[float]]:
    """Per cent from the median of all blocks of the point."""
    middle = median(value for run in strip.runs for value in run) or 1.0
    return [[100 * (value / middle - 1) for value in run] for run in strip.runs]
