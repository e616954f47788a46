"""Figures of studies with many series, which show every one by name: small multiples of efficiency, and a bar of losses
each."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import altair as alt

from analysis.base.text import percent, span
from analysis.measures.losses import Loss, Losses
from analysis.report.charts.axes import by_x, counts_axis, percent_axis
from analysis.report.charts.breakdown import short
from analysis.report.charts.chart import calculated, keep, layer, log_switches, spec_of
from analysis.report.charts.cuts import arrowheads, cut, limits
from analysis.report.charts.looks import Looks, bar, line, reference_line, signs
from analysis.report.charts.names import relative_to, sentence
from analysis.report.losses import LOSS_NAMES
from analysis.report.palette import PARTS, hollow_notes, is_hollow
from analysis.report.print.drawing import drawing, pixels
from analysis.report.print.figure_spec import page
from analysis.report.print.paper import MM, Paper
from analysis.report.sentences import unit_of
from analysis.tables.series import Series, by_series, series_in_order

MANY = 8  # series, from which these figures are drawn
MOST_PANELS, MOST_BARS = 12, 20  # of a figure, so that it fits on a page
COLUMNS, GUTTER, PANEL = 2, 12, 90  # panels beside each other, pixels between them, and their height on the page
NAME_LETTERS = 28  # at most, of a line of a series' name beside its bar
ROW = 12  # pixels of a bar at the standard size of text, per line of its name
WIDE = 1.2  # width of digits and signs, relative to the mean letter
POINTS, LOSSES, ENDS = "points", "losses", "ends"  # dataset names


def each_series(
    points: Sequence[Any], losses: Losses, names: Mapping[str, str], paper: Paper
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield name and spec of each figure; none if there are fewer than MANY series. names: of the series."""
    series = series_in_order(points)
    if len(series) < MANY:
        return
    order = {one.key: i for i, one in enumerate(series)}
    largest = [group[-1] for group in by_series(loss for loss in losses.points if loss.shares)]
    largest = sorted(
        (loss for loss in largest if loss.point.series in order), key=lambda loss: order[loss.point.series]
    )
    widths: dict[int, float] = {}
    for name, panels in _numbered("efficiency_each", series, MOST_PANELS):
        yield name, _multiples(panels, series, names, paper, widths)
    for name, bars in _numbered("losses", largest, MOST_BARS):
        yield name, _losses(bars, largest, names, paper)


def _numbered(name: str, items: Sequence[Any], most: int) -> Iterator[tuple[str, Sequence[Any]]]:
    for number, first in enumerate(range(0, len(items), most), start=1):
        yield name if number == 1 else f"{name}_{number}", items[first : first + most]


def _multiples(
    shown: Sequence[Series], every: Sequence[Series], names: Mapping[str, str], paper: Paper, widths: dict[int, float]
) -> Any:
    """One panel per series, with the others in grey; all have the same axes, and so the same width.

    widths: of a panel, by the number of columns, as found for an earlier figure.
    """
    rows = [_row(point, i) for i, one in enumerate(every) for point in one.points]
    cut(rows, ("low", "high"), (0.0, limits([1.0, *(row["y"] for row in rows)])[1]), percent, "series")
    places = {one.key: i for i, one in enumerate(every)}
    points = [point for one in every for point in one.points]
    counts = {point.gpus for point in points}
    x = counts_axis(counts, unit_of(points))
    top = max(1.1, *(row["drawn_high"] or row["y"] for row in rows))
    ideal = [{"gpus": gpus, "y": 1.0} for gpus in (min(counts), max(counts))]
    columns = (paper.width_mm * MM - (COLUMNS - 1) * GUTTER) / COLUMNS
    panels = []
    for one in shown:
        wrapped = paper.wrapped(names[one.key], columns / MM)
        title = {"text": wrapped, "orient": "top", "anchor": "start", "frame": "group"}
        of_one = [row for row in rows if row["series"] == places[one.key]]
        layers = _panel(places[one.key], of_one, x, top)
        panels.append({"title": title, "height": paper.height(PANEL), "layer": layers})
    note = ["efficiency of one series in each plot, the others in grey", "bars: 95 % intervals", "dashed: ideal"]
    note += hollow_notes(point.marks for one in shown for point in one.points)
    head = relative_to(points)
    spec = {
        **spec_of({}, {POINTS: rows, ENDS: ideal}, log_switches(log_x=len(counts) > 1 and max(counts) > 16)),
        **page(paper, paper.width_mm, head, sentence(note)),
        "columns": COLUMNS,
        "spacing": {"row": GUTTER, "column": GUTTER},
    }
    del spec["width"]
    beside = min(COLUMNS, len(panels))
    if beside not in widths:
        widths[beside] = _fitted(spec, panels, columns, paper)
    return {**spec, "concat": [{**panel, "width": widths[beside]} for panel in panels]}


def _row(point: Any, series: int) -> dict[str, Any]:
    return {
        "series": series,
        "gpus": point.gpus,
        "y": point.efficiency,
        "low": point.efficiency_low,
        "high": point.efficiency_high,
        "hollow": is_hollow(point.marks),
        "name": "own",
    }


def _panel(series: int, rows: Sequence[dict[str, Any]], x: alt.X, top: float) -> list[dict[str, Any]]:
    def y(field: str) -> alt.Y:
        return percent_axis(field, "", top, ticks=[half / 2 for half in range(int(2 * top) + 1)])

    at = calculated(x=by_x("gpus"))
    own = [*at, keep(f"datum.series === {series}")]
    looks = _Alone({}, ["own"], {})
    grey = alt.MarkDef(type="line", strokeWidth=0.8, opacity=0.25, tooltip=None)
    value: dict[str, Any] = {"x": x, "y": y("y")}
    interval = [*own, keep("isValid(datum.low)")]
    return [
        layer(POINTS, grey, at, **value, detail=alt.Detail("series:N")),
        layer(ENDS, reference_line(), at, **value),
        layer(POINTS, bar(), interval, x=x, y=y("low"), y2=alt.Y2("drawn_high:Q"), color=looks.colour()),
        layer(POINTS, line(), own, **value, color=looks.colour()),
        *signs(POINTS, rows, own, looks, 30, **value),
        *arrowheads(POINTS, rows, own, looks, x, lambda end: y(f"drawn_{end}"), False),
    ]


class _Alone(Looks):
    """Of a plot whose title names its series."""

    def colour(self) -> alt.Color:
        return alt.Color("name:N", scale=self._colours(), legend=None)

    def stroke(self) -> alt.Stroke:
        return alt.Stroke("name:N", scale=self._colours(), legend=None)

    def shape(self) -> alt.Shape:
        return alt.Shape("name:N", scale=alt.Scale(domain=["own"], range=["circle"]), legend=None)


def _losses(shown: Sequence[Loss], every: Sequence[Loss], names: Mapping[str, str], paper: Paper) -> dict[str, Any]:
    """One bar per series: what each part of a step takes away from 100 % efficiency at its largest size."""
    labels = ["\n".join(paper.wrapped(names[loss.point.series], _width_of_name(paper))) for loss in shown]
    rows: list[dict[str, Any]] = []
    ends: list[dict[str, Any]] = []
    for i, (loss, label) in enumerate(zip(shown, labels, strict=True)):
        of = {"label": label, "place": i}
        rows += [
            {**of, "part": short(LOSS_NAMES[part]), "share": share.estimate, "order": n}
            for n, (part, share) in enumerate(loss.shares.items())
        ]
        efficiency = loss.point.interval("efficiency")
        assert efficiency is not None, "a point with losses has an efficiency"
        interval = "" if efficiency.low is None else f" ({span(*efficiency.ends, percent)})"
        end = sum(max(0.0, share.estimate) for share in loss.shares.values())
        ends.append({**of, "end": end, "text": f"{percent(efficiency.estimate)}{interval}"})
    looks = {short(LOSS_NAMES[part]): look.colour for part, look in PARTS.items()}
    found = [name for name in looks if any(row["part"] == name for row in rows)]
    lines = max(label.count("\n") + 1 for label in labels)
    low = min(0.0, *(sum(min(0.0, s.estimate) for s in loss.shares.values()) for loss in every))
    high = max(sum(max(0.0, s.estimate) for s in loss.shares.values()) for loss in every)
    letters = 2 + math.ceil(WIDE * max(len(end["text"]) for end in ends))
    free = max(10, paper.letters() - _letters_of_name(paper) - letters)
    domain = [low, high + (high - low) * letters / free]
    # Names of several lines are centred on their bars.
    shifts = [
        {"test": f"split(datum.label, '\\n').length === {n}", "value": -(n - 1) * 0.6 * paper.font}
        for n in range(2, lines + 1)
    ]
    offset = {"condition": shifts, "value": 0} if shifts else 0
    axis = alt.Axis(labelLimit=1000, labelOverlap=False, labelOffset=offset)
    y = alt.Y("label:N", sort=alt.EncodingSortField("place", op="min"), title=None, axis=axis)
    x = alt.X(
        "share:Q",
        title="lost efficiency",
        scale=alt.Scale(domain=domain, nice=False),
        axis=alt.Axis(
            labelExpr=f"datum.value > {high} ? '' : format(100 * datum.value, '.3~r') + ' %'", tickCount=4, grid=True
        ),
    )
    scale = alt.Scale(domain=found, range=[looks[name] for name in found])
    legend = alt.Legend(symbolType="square")
    bars = layer(
        LOSSES,
        alt.MarkDef(type="bar", height={"band": 0.7}, tooltip=None),
        y=y,
        x=x,
        color=alt.Color("part:N", scale=scale, legend=legend),
        order=alt.Order("order:Q"),
    )
    said = alt.MarkDef(type="text", align="left", baseline="middle", dx=4, tooltip=None)
    text = layer(ENDS, said, y=y, x=alt.X("end:Q"), text=alt.Text("text:N"))
    sizes = {loss.point.size for loss in shown}
    bases = {relative_to([loss.point]) for loss in shown}
    head = "; ".join(filter(None, (sizes.pop() if len(sizes) == 1 else "", bases.pop() if len(bases) == 1 else "")))
    note = [
        "numbers: efficiency at the largest size, with its 95 % interval",
        "left of 0: a gain, or noise",
        "the table of losses has the intervals of the parts",
    ]
    scaled = paper.font_pt / Paper.font_pt
    return {
        **spec_of({"layer": [bars, text]}, {LOSSES: rows, ENDS: ends}),
        **page(paper, paper.width_mm, head, sentence(note)),
        "autosize": {"type": "fit-x", "contains": "padding"},
        "width": paper.width_mm * MM,
        "height": len(shown) * scaled * (ROW * lines + 4),
    }


def _letters_of_name(paper: Paper) -> int:
    return min(NAME_LETTERS, int(0.45 * paper.letters()))


def _width_of_name(paper: Paper) -> float:
    """Width in mm of the names beside the bars."""
    return paper.width_mm * (_letters_of_name(paper) + 2) / paper.letters()


def _fitted(spec: dict[str, Any], panels: Sequence[Mapping[str, Any]], width: float, paper: Paper) -> float:
    """Return the width of the panels: the space for axes and labels is known only once drawn."""
    for _ in range(2):
        concat = [{**panel, "width": width} for panel in panels]
        width += (paper.width_mm * MM - pixels(drawing(json.dumps({**spec, "concat": concat})))[0]) / min(
            COLUMNS, len(panels)
        )
    return width
