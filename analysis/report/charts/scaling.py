"""Charts of speedup, efficiency and throughput against the number of GPUs."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import altair as alt

from analysis.base.text import number, percent, printable, span, times
from analysis.measures.speedup import OWN_BASELINE
from analysis.report.best import named_series
from analysis.report.charts.axes import by_x, by_y, counts_axis, log_axis, percent_axis
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
from analysis.report.charts.cuts import ARROWS, arrowheads, cut, limits, low_by_y
from analysis.report.charts.looks import (
    Looks,
    band,
    bar,
    dotted_where,
    faded,
    hovered,
    line,
    pale,
    reference_line,
    reference_text,
    signs,
    tooltips,
)
from analysis.report.charts.names import (
    batches,
    marks_text,
    relative_to,
    runs_text,
    sentence,
    where,
)
from analysis.report.palette import hollow_notes, is_hollow
from analysis.report.sentences import baseline, unit_of
from analysis.tables.bases import ONE_RUN
from analysis.tables.point import Point
from analysis.tables.series import rate_column, series_in_order
from analysis.tables.warnings import SINGLE_RUN
from harness.core.spec import STRONG, WEAK

MOST_POINTS = 400  # per chart; more would be indistinguishable and slow the page down
DODGE, MOST_DODGE = 5, 24  # pixels between bars at one number of GPUs, and of all of them together
MOST_BANDS = 5  # series whose bands can be told apart
FEW_RUNS = 5  # up to so many, Student's t makes intervals wide, and each point gets its own error bar
POINTS, IDEAL = "points", "ideal"  # dataset names
NAMES = {"samples_per_second": "throughput"}  # chart names that differ from the column's
HOVERED = {
    "series": "series",
    "where": "on",
    "said": "value",
    "interval": "95 % interval",
    "baseline": "relative to",
    "runs": "runs",
    "batches": "batch",
    "marks": "warnings",
}


@dataclass(frozen=True)
class Quantity:
    """A quantity on the y axis.

    Attributes:
        name: prefix of its columns.
        show: formats a value.
        log: whether the axis can be logarithmic.
    """

    name: str
    title: str
    axis: str
    show: Callable[[float | None], str]
    log: bool


SPEEDUP = Quantity("speedup", "Speedup", "speedup", times, True)
EFFICIENCY = Quantity("efficiency", "Parallel efficiency", "efficiency", percent, False)
THROUGHPUT = Quantity("samples_per_second", "Throughput", "samples per second", number, True)


def scaling_charts(points: Sequence[Point], looks: Looks) -> list[Chart]:
    """Return the charts; none if no point has a value. rows: the table of points."""
    series = series_in_order(points)
    if not series:
        return []
    named = {one.key for one in named_series(series)}
    drawn, left_out = _fitting([one.points for one in sorted(series, key=lambda one: one.key not in named)])
    return [_chart(quantity, drawn, looks, left_out) for quantity in (SPEEDUP, EFFICIENCY, _throughput(points))]


def throughput_chart(points: Sequence[Point], looks: Looks) -> Chart:
    """Return the chart of throughputs alone; at least one point has one. It has no baseline in its head."""
    drawn, left_out = _fitting([one.points for one in series_in_order(points)])
    return replace(_chart(_throughput(points), drawn, looks, left_out), heads=("",))


def _throughput(points: Sequence[Point]) -> Quantity:
    counts = rate_column(points).heading.lower().removesuffix("/s")
    return replace(THROUGHPUT, axis=f"{counts} per second")


def _fitting(series: Sequence[Sequence[Point]]) -> tuple[list[Point], str | None]:
    """Return the points of the first series that fit, and a note about the omitted ones."""
    drawn: list[Point] = []
    for i, group in enumerate(series):
        if drawn and len(drawn) + len(group) > MOST_POINTS:
            rest = len(series) - i
            return drawn, f"{rest:,} of {len(series):,} series have no room here: the table has them"
        drawn += group[:MOST_POINTS]
    return drawn, None


def _chart(quantity: Quantity, points: Sequence[Point], looks: Looks, left_out: str | None) -> Chart:
    looks = looks.ordered_by(
        {point.series: getattr(point, quantity.name) or 0.0 for point in sorted(points, key=lambda point: point.gpus)}
    )
    seen: set[tuple[str, int]] = set()  # the line of a series goes through the first point of each number of GPUs
    rows = []
    for point in points:
        at = (point.series, point.gpus)
        rows.append(_row(point, at not in seen, quantity, looks))
        seen.add(at)
    data = _whole(rows, quantity)
    counts = {point.gpus for point in points}
    logarithmic = len(counts) > 1 and max(counts) > 16
    log_y = logarithmic and quantity.log
    title = unit_of(points)
    x, axis = counts_axis(counts, title), _axis(quantity, data)
    layers = [*_ideal(quantity, data, looks, x, axis), *_series(quantity, data, looks, x, axis)]
    return Chart(
        NAMES.get(quantity.name, quantity.name),
        quantity.title,
        "scaling",
        spec_of(
            {"height": HEIGHT, "layer": layers},
            {POINTS: data, IDEAL: _ideal_rows(quantity, points)},
            [*looks.controls(), *log_switches(log_x=logarithmic, log_y=log_y)],
        ),
        f"{quantity.title} over the number of {title} of {len(looks.names)} series, with 95 % intervals; "
        "the table of points has the same figures.",
        _note(points, data, log_y, left_out),
        (relative_to(points),),
        looks.legend_letters,
    )


def _row(point: Point, line: bool, quantity: Quantity, looks: Looks) -> dict[str, Any]:
    name = quantity.name
    value, low, high, basis = (getattr(point, f"{name}{end}") for end in ("", "_low", "_high", "_basis"))
    interval = f"{span(low, high, quantity.show)}, from {basis}" if low is not None else basis
    assert point.speedup is not None, "a measured point has a speedup"
    ideal_speedup = point.gpus / point.base_gpus
    ideal = {
        "speedup": ideal_speedup,
        "efficiency": 1.0,
        "samples_per_second": point.rate / point.speedup * ideal_speedup,
    }[name]
    return {
        **looks.row(point),
        "gpus": point.gpus,
        "scaling": point.scaling,
        "value": value,
        "value_low": low,
        "value_high": high,
        "ideal": ideal,
        "line": line,
        "hollow": is_hollow(point.marks),
        "dodge": 0,
        "bar": low is not None and point.runs_completed <= FEW_RUNS,
        "one_run": ONE_RUN in (basis or ""),
        "where": where(point),
        "said": quantity.show(value),
        "interval": printable(interval or "none"),
        "baseline": baseline(point),
        "runs": runs_text(point),
        "batches": batches(point),
        "marks": marks_text(point),
    }


def _whole(data: list[dict[str, Any]], quantity: Quantity) -> list[dict[str, Any]]:
    """Add what draws the intervals: their ends, cut where they are too long for the chart, and a place beside those of
    other series. For a baseline, both ends are its own value: the band starts there."""
    for row in data:
        baseline_alone = row["value_low"] is None and row["interval"].endswith(OWN_BASELINE)
        for end in ("low", "high"):
            row[f"end_{end}"] = row["value"] if baseline_alone else row[f"value_{end}"]
    low, high = limits([row[name] for row in data for name in ("value", "ideal")])
    cut(data, ("end_low", "end_high"), (low if quantity.log else 0.0, high), quantity.show)
    beside: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in data:
        if row["bar"]:
            beside[row["gpus"]].append(row)
    for rows in beside.values():
        for i, row in enumerate(rows):
            row["dodge"] = round((i - (len(rows) - 1) / 2) * min(DODGE, MOST_DODGE / len(rows)), 2)
    return data


def _axis(quantity: Quantity, data: Sequence[Mapping[str, Any]]) -> Callable[[str], alt.Y]:
    if quantity is EFFICIENCY:
        top = max(1.1, *(row["drawn_high"] or row["value"] for row in data))
        return lambda field: percent_axis(field, quantity.axis, top)
    values = [row[name] for row in data for name in ("value", "ideal", "drawn_low") if row[name]]
    return lambda field: log_axis(field, values, quantity.axis, 2 if quantity is SPEEDUP else 10)


def _ideal(
    quantity: Quantity, data: Sequence[Mapping[str, Any]], looks: Looks, x: alt.X, axis: Callable[[str], alt.Y]
) -> list[dict[str, Any]]:
    """Dashed ideal lines: one per named series for throughput, otherwise one per baseline."""
    if quantity.name == THROUGHPUT.name:
        # Those of dozens of series would be a hatched area.
        shared = [name for name, n in Counter(looks.names.values()).items() if n > 1]
        named = [keep(f"indexof({json.dumps(shared)}, datum.name) < 0")] if shared else []
        own = [*looks.chosen(), keep("datum.line"), *named, *calculated(x=by_x("gpus"), y=by_y("ideal"))]
        return [layer(POINTS, reference_line(opacity=0.55), own, x=x, y=axis("y"), detail=alt.Detail("series:N"))]
    at = calculated(x=by_x("gpus"), y=by_y("value", quantity.log))
    # Within the plot, so that the plots of all quantities are of one height: left of the end of a line that rises.
    highest = max((row["drawn_high"] or row["value"] for row in data), default=0)
    is_top = quantity is SPEEDUP and highest <= max(row["ideal"] for row in data)
    beside = {"dx": -14, "dy": 8} if is_top else {}
    return [
        layer(IDEAL, reference_line(), at, x=x, y=axis("y"), detail=alt.Detail("from:N")),
        layer(IDEAL, reference_text("ideal", **beside), [keep("datum.last"), *at], x=x, y=axis("y")),
    ]


def _ideal_rows(quantity: Quantity, points: Sequence[Point]) -> list[dict[str, Any]]:
    """Return points from each baseline to its largest count, at every count, since a semi-logarithmic axis bends
    the line."""
    if quantity.name == THROUGHPUT.name:
        return []
    found = []
    for base in sorted({point.base_gpus for point in points}):
        counts = sorted({base, *(point.gpus for point in points if point.base_gpus == base)})
        for n in counts:
            value = n / base if quantity is SPEEDUP else 1.0
            found.append({"gpus": n, "value": value, "from": base, "last": False})
    if found:
        max(found, key=lambda row: row["gpus"])["last"] = True
    return found


def _series(
    quantity: Quantity,
    data: Sequence[Mapping[str, Any]],
    looks: Looks,
    x: alt.X,
    axis: Callable[[str], alt.Y],
) -> list[dict[str, Any]]:
    log = quantity.log
    drawn = {"y": by_y("value", log), "low": low_by_y("end_low", log), "high": by_y("drawn_high", log)}
    at = [*looks.chosen(), *calculated(x=by_x("gpus"), **drawn)]
    value: dict[str, Any] = {"x": x, "y": axis("y"), "opacity": faded()}
    interval: dict[str, Any] = {"x": x, "y": axis("low"), "y2": alt.Y2("high:Q"), "color": looks.colour()}
    each = alt.Detail("series:N")
    on_line = [*at, keep("datum.line")]
    picked = [picked_in_legend("name")]
    dotted = dotted_where("datum.one_run")
    # Bars of several series at one number of GPUs stand beside each other, with their points.
    aside = {"xOffset": alt.ExprRef("datum.dodge")} if any(row["dodge"] for row in data) else {}
    bands = layer(POINTS, band(), on_line, **interval, detail=each, opacity=pale())
    bars = layer(POINTS, bar(**aside), [*at, keep("datum.bar")], **interval, opacity=faded(), strokeDash=dotted)
    return [
        *([bands] if any(row["drawn_low"] is not None for row in data) and not _crowded(data) else []),
        *([bars] if any(row["bar"] for row in data) else []),
        layer(
            POINTS,
            line(),
            on_line,
            picked,
            **value,
            color=looks.colour(),
            detail=each,
            strokeDash=_dash(data),
        ),
        *signs(POINTS, data, at, looks, mark=aside, **value),
        *arrowheads(POINTS, data, at, looks, x, axis, log, **aside),
        layer(POINTS, hovered(), at, x=x, y=axis("y"), tooltip=tooltips(**HOVERED)),
    ]


def _crowded(data: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if bands of this many series would hide each other, so that bars show the intervals."""
    every = all(row["bar"] for row in data if row["value_low"] is not None)
    return every and len({row["name"] for row in data}) > MOST_BANDS


def _dash(rows: Sequence[Mapping[str, Any]]) -> alt.StrokeDash:
    """Distinguish weak from strong scaling by dashes, as the legend explains."""
    kinds = [kind for kind in (WEAK, STRONG) if any(row["scaling"] == kind for row in rows)]
    legend = alt.Legend(labelExpr="datum.label + ' scaling'") if len(kinds) > 1 else None
    dashes = {WEAK: [1, 0], STRONG: [8, 3]}
    return alt.StrokeDash(
        "scaling:N", scale=alt.Scale(domain=kinds, range=[dashes[kind] for kind in kinds]), legend=legend
    )


def _note(points: Sequence[Point], data: Sequence[Mapping[str, Any]], logarithmic: bool, left_out: str | None) -> str:
    parts = ["dashed: ideal"]
    parts += (
        ["bars: 95 % intervals"]
        if _crowded(data)
        else ["bands: 95 % intervals", f"bars: those of {FEW_RUNS} runs or fewer"]
    )
    if any(row["cut_high"] or (row["cut_low"] and logarithmic) for row in data):
        parts.append(ARROWS)
    if any(SINGLE_RUN in point.marks for point in points):
        parts.append("dotted bars: from the blocks of a single run")
    parts += [*hollow_notes(point.marks for point in points), *filter(None, (left_out,))]
    return sentence(parts)
