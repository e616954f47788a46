"""Which series a reader sees first where there are too many for one plot: those that scale best, or that the user names
first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from analysis.report.palette import LOOKS
from analysis.report.sentences import is_own_baseline
from analysis.tables.point import Point
from analysis.tables.series import Series
from analysis.tables.warnings import (
    BASELINE_OVERSUBSCRIBED,
    BASELINE_WORK_DIFFERS,
    FAULT_INJECTED,
    OVERSUBSCRIBED,
    PROFILED,
    WORK_DIFFERS,
)
from harness.core.spec import EMULATED

NAMED = len(LOOKS)  # series at most that have a colour, and a name in the legends
MANY = 8  # series, from which a plot shows only the best of them at first
FIRST = 5  # series that it then shows
# Points with these warnings are used only if there are no others, since they do not show how training scales.
DOUBTFUL = {
    OVERSUBSCRIBED,
    BASELINE_OVERSUBSCRIBED,
    WORK_DIFFERS,
    BASELINE_WORK_DIFFERS,
    FAULT_INJECTED,
    PROFILED,
    EMULATED,
}


def worth(point: Point) -> tuple[bool, bool, float]:
    """Sort key of a series by its largest measured point: by speedup, preferring points without serious warnings;
    without any speedup, by throughput."""
    scaled = not is_own_baseline(point) and point.speedup is not None
    return scaled, not DOUBTFUL & set(point.marks), (point.speedup or 0) if scaled else point.rate


def best_series(series: Iterable[Series], most: int) -> list[Series]:
    """Return the best series that have a measured point, the user's choice first, best first."""

    def key(one: Series) -> tuple[float, tuple[bool, bool, float]]:
        place = math.inf if one.first.shown is None else one.first.shown.place
        return -place, worth(_largest(one.measured))

    return sorted((one for one in series if one.measured), key=key, reverse=True)[:most]


def named_series(series: Sequence[Series]) -> list[Series]:
    """Return the series with a colour of their own, in their order."""
    best = {one.key for one in best_series(series, NAMED)}
    return [one for one in series if one.key in best]


def _largest(points: Sequence[Point]) -> Point:
    return max(points, key=lambda point: (point.gpus, point.nodes))
