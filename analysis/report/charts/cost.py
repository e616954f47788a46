"""Charts of training cost against time: of an epoch, and to a target accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from analysis.base.numbers import common
from analysis.base.text import duration, hours_unit, number, printable, span
from analysis.measures.decisions import same_work
from analysis.report.charts.axes import by_x, by_y, log_axis, log_x_axis
from analysis.report.charts.chart import (
    HEIGHT,
    Chart,
    calculated,
    keep,
    layer,
    log_switches,
    picked_in_legend,
    spec_of,
)
from analysis.report.charts.looks import Looks, bar, faded, hovered, reference_line, signs, tooltips
from analysis.report.charts.names import batches, marks_text, only_in_table, sentence, where
from analysis.report.palette import hollow_notes, is_hollow
from analysis.tables.point import Point

COSTS = "costs"  # dataset name
MOST_POINTS = 400
# (name, title, column of the time, of the cost, of being Pareto-optimal, "an epoch")
KINDS = (
    ("cost-epoch", "An epoch: GPU-hours against time", "epoch_seconds", "epoch_gpu_hours", "epoch_front"),
    ("cost-target", "To the target: GPU-hours against time", "to_train_seconds", "to_gpu_hours", "target_front"),
)
HOVERED = {
    "series": "series",
    "where": "on",
    "time": "time",
    "cost": "cost",
    "on_front": "none beaten in both",
    "batches": "batch",
    "basis": "interval from",
    "marks": "warnings",
}


def cost_charts(decisions: Sequence[Mapping[str, Any]], looks: Looks) -> list[Chart]:
    """Return a chart for each of KINDS whose two figures some points have. decisions: see
    analysis/measures/decisions.py."""
    charts = []
    for kind in KINDS:
        rows = [row for row in decisions if row["point"].series in looks.names]
        rows = [row for row in rows if row[kind[2]] is not None and row[kind[3]] is not None]
        if rows:
            charts.append(_chart(kind, rows, looks))
    return charts


def _chart(kind: tuple[str, str, str, str, str], rows: Sequence[Mapping[str, Any]], looks: Looks) -> Chart:
    name, title, _, _, on_front = kind
    # Pareto-optimal points first, since one chooses among them.
    shown = sorted(rows, key=lambda row: not row[on_front])[:MOST_POINTS]
    work = {point: i for i, group in enumerate(same_work(row["point"] for row in shown)) for point in group}
    data = [_row(row, kind, work[row["point"]], looks) for row in shown]
    unit = common(hours_unit(row["point"].device) for row in rows) or "GPU-hours or rank-hours"
    parts = ["dashed: points that no other of the same work beats in both time and cost"]
    if any(row["low"] is not None for row in data):
        parts.append("slanted bars: 95 % intervals, as both follow from the throughput")
    parts += [*hollow_notes(row["point"].marks for row in shown), *only_in_table(len(shown), len(rows))]
    return Chart(
        name,
        title.replace("GPU-hours", unit),
        "cost",
        spec_of(
            {"height": HEIGHT, "layer": _layers(data, unit, looks)},
            {COSTS: data},
            [*looks.controls(), *log_switches(log_x=True, log_y=True)],
        ),
        f"{unit} against seconds of training of {len(shown)} points; the table of costs has the same figures.",
        sentence(parts),
    )


def _row(row: Mapping[str, Any], kind: tuple[str, str, str, str, str], work: int, looks: Looks) -> dict[str, Any]:
    _, _, time, cost, on_front = kind
    point: Point = row["point"]
    low, high = row.get(f"{time}_low"), row.get(f"{time}_high")
    known = low is not None and high is not None
    interval = f" ({span(low, high, duration)})" if known else ""
    return {
        **looks.row(point),
        "gpus": point.gpus,
        "seconds": row[time],
        "hours": row[cost],
        "low": low,
        "high": high,
        "hours_low": row.get(f"{cost}_low"),
        "hours_high": row.get(f"{cost}_high"),
        "front": bool(row[on_front]),
        "work": work,
        "hollow": is_hollow(point.marks),
        "where": where(point),
        "size": str(point.gpus),
        "time": f"{duration(row[time])}{interval}",
        "cost": f"{number(row[cost])} {hours_unit(point.device)}",
        "on_front": "yes" if row[on_front] else "no",
        "batches": batches(point),
        "basis": printable(row["basis"] or "none") if known else "none",
        "marks": marks_text(point),
    }


def _layers(data: Sequence[Mapping[str, Any]], unit: str, looks: Looks) -> list[dict[str, Any]]:
    drawn = {"x": by_x("seconds"), "x_low": by_x("low"), "x_high": by_x("high")}
    drawn |= {"y": by_y("hours"), "y_low": by_y("hours_low"), "y_high": by_y("hours_high")}
    at = [*looks.chosen(), *calculated(**drawn)]
    x = log_x_axis("x", [row["seconds"] for row in data], "seconds of training")
    y = log_axis("y", [row["hours"] for row in data], unit)
    front = [*at, keep("datum.front")]
    ends: dict[str, Any] = {
        "x": log_x_axis("x_low", [row["seconds"] for row in data], "seconds of training"),
        "x2": alt.X2("x_high:Q"),
        "y": log_axis("y_low", [row["hours"] for row in data], unit),
        "y2": alt.Y2("y_high:Q"),
    }
    value: dict[str, Any] = {"x": x, "y": y, "opacity": faded()}
    sizes = alt.MarkDef(type="text", align="left", dx=8, dy=-7, tooltip=None)
    picked = [picked_in_legend("name")]
    bars = layer(COSTS, bar(), [*at, keep("isValid(datum.low)")], **ends, color=looks.colour(), opacity=faded())
    return [
        layer(COSTS, reference_line(), front, x=x, y=y, order=alt.Order("seconds:Q"), detail=alt.Detail("work:N")),
        *([bars] if any(row["low"] is not None for row in data) else []),
        *signs(COSTS, data, at, looks, params=picked, **value),
        layer(COSTS, sizes, front, **value, text=alt.Text("size:N")),
        layer(COSTS, hovered(), at, x=x, y=y, tooltip=tooltips(**HOVERED)),
    ]
