"""Charts of the step time of blocks over each run, relative to the median of its point."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

import altair as alt

from analysis.base.text import percent, printable, shortened
from analysis.read.columns.steadiness import DRIFT
from analysis.read.row import Run
from analysis.report.charts.chart import (
    HEIGHT,
    Chart,
    calculated,
    layer,
    looked_up,
    picked_in_legend,
    spec_of,
    where_picked,
)
from analysis.report.charts.looks import FADED, Looks, faded, hovered, tooltips
from analysis.report.charts.names import marks_text, sentence, where
from analysis.report.charts.theme import REFERENCE
from analysis.stats.stability import outliers
from analysis.tables.point import Point

if TYPE_CHECKING:
    from analysis.report.findings import Findings

BLOCKS, RUNS, MEDIAN = "blocks", "runs", "median"  # dataset names
MOST_RUNS, MOST_BLOCKS = 24, 3000
MOST_REACH = 3.0  # limit on the deviation above the median, in medians: one extreme block would flatten all others
FEWEST_OF_TITLE = 50  # letters of a line in print, from which the axis has its whole title
OUTLIER = "#C2410C"  # readable on both themes
HOVERED = {
    "series": "series",
    "where": "on",
    "run": "run",
    "block_text": "block",
    "said": "step time",
    "from_median": "from the point's median",
    "outside": "outside Tukey's fences",
    "marks": "warnings",
}


def steadiness_charts(findings: Findings, looks: Looks) -> list[Chart]:
    """Return the chart, or nothing if no run has two blocks.

    If there are too many runs, those of points that drifted or have the most blocks outside Tukey's fences are drawn.
    """
    points = [point for point in findings.points if point.series in looks.names and (point.blocks or 0) > 1]
    members = [(point, run) for point in points for run in point.completed]
    if not members:
        return []
    members.sort(key=lambda pair: _steadiness(*pair))
    drawn = members[:MOST_RUNS]
    each = max(2, MOST_BLOCKS // len(drawn))
    middles = _medians(drawn)
    data, facts, thinned = [], [], False
    for at, (point, run) in enumerate(drawn):
        times = run.block_step_seconds
        thinned = thinned or len(times) > each
        data += _blocks(times, at, middles[point], each)
        facts.append(_facts(point, run, at, looks))
    parts = ["rings: blocks outside Tukey's fences of their run; all of them count"]
    if any(DRIFT in point.marks for point, _ in drawn):
        parts.append(f"bold: runs of points marked {DRIFT}")
    if max(row["y"] for row in data) > MOST_REACH:
        parts.append(f"blocks more than {percent(MOST_REACH)} above the median are drawn at the upper edge")
    if len(drawn) < len(members):
        parts.append(f"{len(drawn)} of {len(members):,} runs are drawn, the least steady ones")
    if thinned:
        parts.append(f"of a run at most {each} blocks, evenly spread, and those outside the fences")
    return [
        Chart(
            "block-times",
            "Step time over each run",
            "steadiness",
            spec_of(
                {"height": HEIGHT, "layer": _layers(data, facts, looks)},
                {BLOCKS: data, RUNS: facts, MEDIAN: [{}]},  # one row, since each has a rule
                looks.controls(),
            ),
            f"Step time of the blocks of {len(drawn)} runs relative to the median of their point, from the first block "
            "to the last; the table of steadiness has the figures of each point.",
            sentence(parts),
        )
    ]


def _steadiness(point: Point, run: Run) -> tuple[bool, float]:
    return DRIFT not in point.marks, -(run.outlier_blocks or 0)


def _medians(drawn: Sequence[tuple[Point, Run]]) -> dict[Point, float]:
    """Return the median seconds per step of each point's blocks, by the ids of its runs."""
    return {
        point: median(time for run in point.completed for time in run.block_step_seconds) or 1.0
        for point in dict.fromkeys(point for point, _ in drawn)
    }


def _blocks(times: Sequence[float], at: int, middle: float, most: int) -> list[dict[str, Any]]:
    """Return a row for each drawn block. x: the block's position in the run, from 0 to 1."""
    outside = set(outliers(times))
    stride = math.ceil(len(times) / most)
    # Limits outliers too, in case all blocks are outliers.
    rings = set(sorted(outside)[:most])
    kept = [i for i in range(len(times)) if i % stride == 0 or i in rings]
    return [
        {"run_at": at, "block": i + 1, "x": (i + 0.5) / len(times), "y": times[i] / middle - 1, "seconds": times[i]}
        | ({"out": True} if i in outside else {})
        for i in kept
    ]


def _facts(point: Point, run: Run, at: int, looks: Looks) -> dict[str, Any]:
    return {
        "run_at": at,
        **looks.row(point),
        "where": where(point),
        "run": shortened(printable(run.run_id), 80),
        "of": len(run.block_step_seconds),
        "drift": DRIFT in point.marks,
        "marks": marks_text(point),
    }


def _layers(
    data: Sequence[Mapping[str, Any]], facts: Sequence[Mapping[str, Any]], looks: Looks
) -> list[dict[str, Any]]:
    said = {
        "said": "format(1000 * datum.seconds, ',.4~r') + ' ms'",
        "from_median": "format(100 * datum.y, '+.2f') + ' %'",
        "block_text": "datum.block + ' of ' + datum.of",
        "outside": "datum.out ? 'yes' : 'no'",
    }
    at = [looked_up(RUNS, "run_at", facts), *looks.chosen(), *calculated(**said)]
    lowest, highest = min(row["y"] for row in data), max(row["y"] for row in data)
    reach = min(-0.02, lowest), max(0.02, min(highest, MOST_REACH))
    wide = looks.letters is None or looks.letters >= FEWEST_OF_TITLE
    x = alt.X(
        "x:Q",
        # On a narrow figure in print, the longer title would not fit.
        title="the run, from its first timed step to its last" if wide else "the run, from first to last step",
        scale=alt.Scale(domain=[0, 1], nice=False),
        axis=alt.Axis(values=[0, 0.5, 1], labelExpr="datum.value === 0 ? 'start' : datum.value === 1 ? 'end' : 'half'"),
    )
    y = alt.Y(
        "y:Q",
        title="step time, from the median",
        scale=alt.Scale(domain=list(reach), nice=True, clamp=True),
        axis=alt.Axis(labelExpr="format(100 * datum.value, datum.value ? '+~r' : 'd') + ' %'", tickCount=6),
    )
    each, colour = alt.Detail("run_at:N"), looks.colour()
    zero = alt.MarkDef(type="rule", strokeWidth=1, strokeDash=[5, 4], style=REFERENCE, tooltip=None)
    thread = alt.MarkDef(type="line", tooltip=None)
    ring = alt.MarkDef(type="point", size=34, strokeWidth=1.2, filled=False, color=OUTLIER, tooltip=None)
    out = [*at, alt.FilterTransform(filter="datum.out")]
    width = alt.StrokeWidth(condition={"test": "datum.drift", "value": 2.2}, value=0.9)
    picked = [picked_in_legend("name")]
    thin = alt.Opacity(**where_picked(0.5, FADED / 2))
    return [
        layer(MEDIAN, zero, y=alt.Y(datum=0)),
        layer(
            BLOCKS,
            thread,
            at,
            picked,
            x=x,
            y=y,
            color=colour,
            detail=each,
            strokeWidth=width,
            opacity=thin,
        ),
        layer(BLOCKS, ring, out, x=x, y=y, opacity=faded()),
        layer(BLOCKS, hovered(60), at, x=x, y=y, tooltip=tooltips(**HOVERED)),
    ]
