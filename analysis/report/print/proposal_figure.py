"""Speedup and efficiency figure of a proposal: measured sizes and the requested size."""

from __future__ import annotations

import json
from typing import Any

import altair as alt

from analysis.base.text import percent, times, unit
from analysis.report.charts.axes import by_x, by_y, counts_axis, log_axis, percent_axis
from analysis.report.charts.chart import HEIGHT, calculated, keep, layer, log_switches, spec_of
from analysis.report.charts.cuts import ARROWS, arrowheads, cut, limits, low_by_y
from analysis.report.charts.looks import Looks, bar, line, reference_line, reference_text, signs
from analysis.report.charts.names import sentence
from analysis.report.palette import LOOKS, hollow_notes, is_hollow
from analysis.report.print.drawing import drawing, pixels
from analysis.report.print.figure_spec import page
from analysis.report.print.paper import MM, Paper
from analysis.report.print.request import Request, Size
from analysis.report.sentences import baseline

IDEAL = "ideal"  # dataset name; the others are the QUANTITIES
QUANTITIES = ("speedup", "efficiency")
LOG = "speedup"  # the one whose axis can be logarithmic
GUTTER = 14  # pixels between the two axes


class _Signs(Looks):
    """Draws the requested size as a diamond."""

    def shape(self) -> alt.Shape:
        scale = alt.Scale(domain=list(self.domain), range=[LOOKS[0].shape, "diamond"])
        return alt.Shape("name:N", scale=scale, legend=alt.Legend(symbolOpacity=1))


def proposal_figure(request: Request, paper: Paper) -> dict[str, Any]:
    """The spec of two plots side by side, together two columns wide."""
    asked = f"requested{', predicted' if request.asked.point is None else ''}"
    measured = f"measured, relative to {baseline(request.points[-1])}"
    linked = _linked(request)
    rows = [_row(size, asked if size is request.asked else measured, size in linked) for size in request.sizes]
    counts = {row["gpus"] for row in rows}
    base = request.base.gpus
    ideal = [{"gpus": n, "speedup": n / base, "efficiency": 1.0} for n in sorted(counts | {base})]
    logarithmic = len(counts) > 1 and max(counts) > 16
    x = counts_axis(counts, unit(request.source.device))
    looks = _Signs({}, [measured, asked], {})
    tops = {quantity: limits([row[quantity] for row in [*rows, *ideal]]) for quantity in QUANTITIES}
    data = {quantity: [dict(row) for row in rows] for quantity in QUANTITIES}  # each cut at its own axis
    for quantity in QUANTITIES:
        low, high = tops[quantity]
        ends = (f"{quantity}_low", f"{quantity}_high")
        if quantity == LOG:
            cut(data[quantity], ends, (low, high), times)
        else:
            cut(data[quantity], ends, (0.0, high), percent)
    panels = [
        {"height": paper.height(HEIGHT), "layer": _layers(quantity, data[quantity], looks, x)}
        for quantity in QUANTITIES
    ]
    are_cut = any(row["cut_high"] or (row["cut_low"] and logarithmic) for panel in data.values() for row in panel)
    spec = {
        **spec_of({}, {**data, IDEAL: ideal}, log_switches(log_x=logarithmic, log_y=logarithmic)),
        **page(paper, paper.wide_mm, "", _note(request, are_cut)),
        "spacing": GUTTER,
    }
    del spec["width"]
    width = paper.wide_mm * MM / 2
    for _ in range(2):  # the space for axes and labels is known only once drawn
        spec["hconcat"] = [{**panel, "width": width} for panel in panels]
        width += (paper.wide_mm * MM - pixels(drawing(json.dumps(spec)))[0]) / 2
    return spec


def _linked(request: Request) -> list[Size]:
    """The predicted size and the measured one nearest to it; empty if all were measured."""
    if request.asked.point is not None:
        return []
    measured = [size for size in request.sizes if size.point is not None]
    return [request.asked, min(measured, key=lambda size: abs(size.gpus - request.asked.gpus))]


def _row(size: Size, name: str, linked: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "gpus": size.gpus, "predicted": size.point is None, "linked": linked}
    row["hollow"] = size.point is None or is_hollow(size.point.marks)
    for quantity, value in (("speedup", size.speedup), ("efficiency", size.efficiency)):
        row |= {quantity: value.estimate, f"{quantity}_low": value.low, f"{quantity}_high": value.high}
    return row


def _layers(quantity: str, rows: list[dict[str, Any]], looks: Looks, x: alt.X) -> list[dict[str, Any]]:
    log = quantity == LOG
    last = max(row["gpus"] for row in rows)
    ends = [row[name] for row in rows for name in (quantity, "drawn_low", "drawn_high") if row[name]]

    def y(field: str) -> alt.Y:
        if not log:
            return percent_axis(field, quantity, max(1.1, *ends))
        return log_axis(field, ends, quantity, 2)

    low, high = low_by_y(f"{quantity}_low", log), by_y("drawn_high", log)
    at = calculated(x=by_x("gpus"), y=by_y(quantity, log), low=low, high=high)
    of_ideal = calculated(x=by_x("gpus"), y=by_y(quantity, log))
    known, interval = [*at, keep("!datum.predicted")], [*at, keep("isValid(datum.low)")]
    dashed = alt.StrokeDash(condition={"test": "datum.predicted", "value": [4, 2]}, value=[1, 0])
    value: dict[str, Any] = {"x": x, "y": y("y")}
    first = alt.MarkDef(type="line", strokeWidth=1.2, strokeDash=[2, 2], color=LOOKS[1].colour)
    return [
        layer(IDEAL, reference_line(), of_ideal, **value),
        layer(IDEAL, reference_text("ideal"), [keep(f"datum.gpus === {last}"), *of_ideal], **value),
        layer(quantity, first, [*at, keep("datum.linked")], **value),
        layer(quantity, line(color=LOOKS[0].colour), known, **value),
        layer(quantity, bar(), interval, x=x, y=y("low"), y2=alt.Y2("high:Q"), color=looks.colour(), strokeDash=dashed),
        *signs(quantity, rows, at, looks, **value, opacity=alt.value(1)),
        *arrowheads(quantity, rows, at, looks, x, y, log),
    ]


def _note(request: Request, are_cut: bool) -> str:
    parts = ["dashed line: ideal", "bars: 95 % intervals", *([ARROWS] if are_cut else [])]
    if request.asked.point is None:
        parts.append("hollow diamond, dashed bar: predicted, with a 90 % interval")
    return sentence([*parts, *hollow_notes(point.marks for point in request.points)])
