"""Charts of accuracy against samples and against time: a thin line for each seed, a bold one for the median."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import altair as alt

from analysis.base.text import percent
from analysis.measures.learning import Learning
from analysis.report.charts.axes import percent_axis
from analysis.report.charts.chart import (
    HEIGHT,
    Chart,
    calculated,
    keep,
    layer,
    looked_up,
    picked_in_legend,
    spec_of,
    where_picked,
)
from analysis.report.charts.looks import Looks, faded, hovered, line, reference_line, reference_text, signs, tooltips
from analysis.report.charts.names import marks_text, only_in_table, sentence, where
from analysis.report.palette import hollow_notes, is_hollow
from analysis.report.sentences import seeds_text
from analysis.tables.point import Point

EVALUATIONS, POINTS, TARGET = "evaluations", "points", "target"  # dataset names
MOST_POINTS, MOST_ROWS = 40, 1500  # limits of the study's points, and of evaluations over all their runs
# (name, title, quantity on the x axis, its label)
KINDS = (
    ("accuracy-by-seconds", "Accuracy against time", "train_seconds", "seconds of training, without evaluations"),
    ("accuracy-by-samples", "Accuracy against samples", "samples", "training samples, all ranks together"),
)
DASHES = ([1, 0], [7, 3], [2, 2], [9, 3, 2, 3], [4, 4], [1, 3])  # one per number of GPUs, the largest first
HOVERED = {
    "series": "series",
    "where": "on",
    "said": "test accuracy",
    "who": "of",
    "seeds": "seeds",
    "marks": "warnings",
}


def learning_charts(learning: Learning, looks: Looks) -> list[Chart]:
    """Return the charts, or nothing if no run was evaluated more than once."""
    learned = [
        row
        for row in learning.points
        if row["point"].series in looks.names and any(len(curve) > 1 for curve in row["curves"])
    ]
    if not learned:
        return []
    order = {key: i for i, key in enumerate(looks.names)}
    learned.sort(key=lambda row: (order[row["point"].series], -row["point"].gpus))
    shown = learned[:MOST_POINTS]
    each = max(2, MOST_ROWS // sum(len(row["curves"]) for row in shown))
    return [_chart(kind, shown, len(learned), each, learning.target, looks) for kind in KINDS]


def medians(curves: Sequence[Sequence[Mapping[str, Any]]], quantity: str) -> list[tuple[float, float]]:
    """Return medians over runs, as (x, accuracy), at the numbers of samples where all runs were evaluated."""
    found = []
    for samples in sorted({row["samples"] for curve in curves for row in curve}):
        rows = [row for curve in curves for row in curve if row["samples"] == samples and row[quantity] is not None]
        if len(rows) == len(curves):
            found.append((median(row[quantity] for row in rows), median(row["accuracy"] for row in rows)))
    return found


def _chart(
    kind: tuple[str, str, str, str],
    learned: Sequence[Mapping[str, Any]],
    all_points: int,
    each: int,
    target: float | None,
    looks: Looks,
) -> Chart:
    name, title, quantity, label = kind
    data = [row for i, one in enumerate(learned) for row in _rows(one["curves"], i, quantity, each)]
    facts = [_facts(one, i, looks) for i, one in enumerate(learned)]
    ends = [{"x": x, "y": target} for x in (0, max((row["x"] for row in data), default=0))]
    thinned = any(len(curve) > each for one in learned for curve in one["curves"])
    parts = ["thin lines: one run each; bold: the median of a point's runs, where all were evaluated"]
    parts += hollow_notes(one["point"].marks for one in learned)
    if thinned:
        parts.append(f"of each run {each} evaluations, evenly spread, and the last: learning.csv has all")
    parts += only_in_table(len(learned), all_points)
    return Chart(
        name,
        title,
        "learning",
        spec_of(
            {"height": HEIGHT, "layer": _layers(data, facts, label, target, looks)},
            {EVALUATIONS: data, POINTS: facts, TARGET: ends if target is not None else []},
            looks.controls(),
        ),
        f"Test accuracy over {label}, of {len(learned)} points, one line for each run and a bold one for their median; "
        "the table of accuracies has the last ones.",
        sentence(parts),
    )


def _facts(learned: Mapping[str, Any], at: int, looks: Looks) -> dict[str, Any]:
    point: Point = learned["point"]
    return {
        "point": at,
        **looks.row(point),
        "gpus": point.gpus,
        "hollow": is_hollow(point.marks),
        "where": where(point),
        "size": point.size,
        "seeds": seeds_text(learned),
        "marks": marks_text(point),
    }


def _rows(curves: Sequence[Sequence[Mapping[str, Any]]], at: int, quantity: str, each: int) -> list[dict[str, Any]]:
    """Return the rows of a point's lines. who: the run of a thin line, or the median."""
    rows = []
    for i, curve in enumerate(curves):
        who = f"seed {curve[0]['seed']}, repeat {curve[0]['repeat']} (run {i + 1} of {len(curves)})"
        known = [row for row in _thinned(curve, each) if row[quantity] is not None]
        rows += [{"point": at, "x": row[quantity], "y": row["accuracy"], "who": who, "bold": False} for row in known]
    whole = _thinned(medians(curves, quantity), each)
    return rows + [{"point": at, "x": x, "y": y, "who": "the median of its runs", "bold": True} for x, y in whole]


def _thinned(values: Sequence[Any], most: int) -> list[Any]:
    """Keep at most so many, evenly spaced, including the last."""
    step = math.ceil(len(values) / most)
    return list(values[::-1][::step][::-1]) if step > 1 else list(values)


def _layers(
    data: Sequence[Mapping[str, Any]],
    facts: Sequence[Mapping[str, Any]],
    label: str,
    target: float | None,
    looks: Looks,
) -> list[dict[str, Any]]:
    best = max((row["y"] for row in data), default=1.0)
    top = min(1.0, 1.1 * max(best, target or 0.0))
    x = alt.X("x:Q", title=label, axis=alt.Axis(labelExpr="format(datum.value, ',~r')", tickCount=5))

    def y() -> alt.Y:
        return percent_axis("y", "test accuracy", top)

    said = {
        "said": "format(100 * datum.y, '.2f') + ' %'",
        "after": "format(datum.x, ',.4~r')",
        "line": "datum.point + ': ' + datum.who",
    }
    at, each = [looked_up(POINTS, "point", facts), *looks.chosen(), *calculated(**said)], alt.Detail("line:N")
    picked = [picked_in_legend("name")]
    thin = alt.Opacity(**where_picked(0.4, 0.06))
    bold, runs = [*at, keep("datum.bold")], [*at, keep("!datum.bold")]
    value: dict[str, Any] = {"x": x, "y": y(), "opacity": faded()}
    colour, dash = looks.colour(), _dash(facts)
    hovering = tooltips(**HOVERED, after=label.split(",")[0])
    layers = [
        layer(EVALUATIONS, line(strokeWidth=0.8), runs, x=x, y=y(), color=colour, detail=each, opacity=thin),
        layer(
            EVALUATIONS,
            line(strokeWidth=2.2),
            bold,
            picked,
            **value,
            color=colour,
            detail=each,
            strokeDash=dash,
        ),
        *signs(EVALUATIONS, facts, bold, looks, 26, **value),
        layer(EVALUATIONS, hovered(120), at, x=x, y=y(), tooltip=hovering),
    ]
    if target is None:
        return layers
    text = reference_text(f"target: {percent(target, 1)}", align="left")
    return [
        layer(TARGET, reference_line(), x=x, y=y()),
        layer(TARGET, text, [keep("datum.x === 0")], x=x, y=y()),
        *layers,
    ]


def _dash(facts: Sequence[Mapping[str, Any]]) -> alt.StrokeDash:
    """Distinguish the numbers of GPUs in a series by dashes, as the legend explains."""
    labels = {row["gpus"]: row["size"] for row in facts}
    domain = [labels[n] for n in sorted(labels, reverse=True)]
    dashes = [DASHES[min(i, len(DASHES) - 1)] for i in range(len(domain))]
    legend = alt.Legend(symbolType="stroke", columns=3) if 1 < len(domain) <= len(DASHES) else None
    return alt.StrokeDash("size:N", scale=alt.Scale(domain=domain, range=dashes), legend=legend)
