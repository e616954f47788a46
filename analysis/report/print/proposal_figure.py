"""Speedup and efficiency figure of a proposal: measured sizes and the requested size."""

from __future__ import annotations

import json
from typing import Any

import altair as alt

from analysis.base.text import unit
from analysis.report.charts.axes import by_x, by_y, counts_axis, log_axis, percent_axis
from analysis.report.charts.chart import HEIGHT, calculated, keep, layer, log_switches, spec_of
from analysis.report.charts.looks import Looks, bar, line, reference_line, reference_text, signs
from analysis.report.charts.names import sentence
from analysis.report.charts.scaling import cut_interval
from analysis.report.palette import LOOKS, hollow_notes, is_hollow
from analysis.report.print.drawing import drawing, page, pixels
from analysis.report.print.paper import MM, Paper
from analysis.report.print.request import Request, Size
from analysis.report.sentences import baseline

SIZES, IDEAL = "sizes", "ideal"  # dataset names
QUANTITIES = ("speedup", "efficiency")
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
    panels = [{"height": paper.height(HEIGHT), "layer": _layers(quantity, rows, looks, x)} for quantity in QUANTITIES]
    spec = {
        **spec_of({}, {SIZES: rows, IDEAL: ideal}, log_switches(log_x=logarithmic, log_y=logarithmic)),
        **page(paper, paper.wide_mm, "", _note(request)),
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
        low, high = cut_interval(value.estimate, value.low, value.high)
        row |= {quantity: value.estimate, f"{quantity}_low": low, f"{quantity}_high": high}
    return row


def _layers(quantity: str, rows: list[dict[str, Any]], looks: Looks, x: alt.X) -> list[dict[str, Any]]:
    log = quantity == "speedup"
    last = max(row["gpus"] for row in rows)
    ends = [row[name] for row in rows for name in (quantity, f"{quantity}_low", f"{quantity}_high") if row[name]]

    def y(field: str) -> alt.Y:
        if not log:
            return percent_axis(field, quantity, max(1.1, *ends))
        return log_axis(field, ends, quantity, 2)

    fields = {"y": quantity, "low": f"{quantity}_low", "high": f"{quantity}_high"}
    at = calculated(x=by_x("gpus"), **{to: by_y(field, log) for to, field in fields.items()})
    of_ideal = calculated(x=by_x("gpus"), y=by_y(quantity, log))
    known, interval = [*at, keep("!datum.predicted")], [*at, keep("isValid(datum.low)")]
    dashed = alt.StrokeDash(condition={"test": "datum.predicted", "value": [4, 2]}, value=[1, 0])
    value: dict[str, Any] = {"x": x, "y": y("y")}
    first = alt.MarkDef(type="line", strokeWidth=1.2, strokeDash=[2, 2], color=LOOKS[1].colour)
    return [
        layer(IDEAL, reference_line(), of_ideal, **value),
        layer(IDEAL, reference_text("ideal"), [keep(f"datum.gpus === {last}"), *of_ideal], **value),
        layer(SIZES, first, [*at, keep("datum.linked")], **value),
        layer(SIZES, line(color=LOOKS[0].colour), known, **value),
        layer(SIZES, bar(), interval, x=x, y=y("low"), y2=alt.Y2("high:Q"), color=looks.colour(), strokeDash=dashed),
        *signs(SIZES, rows, at, looks, **value, opacity=alt.value(1)),
    ]


def _note(request: Request) -> str:
    parts = ["dashed line: ideal", "bars: 95 % intervals"]
    if request.asked.point is None:
        parts.append("hollow diamond, dashed bar: predicted, with a 90 % interval")
    return sentence([*parts, *hollow_notes(point.marks for point in request.points)])
