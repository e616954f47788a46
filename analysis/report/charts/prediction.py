"""Charts of measured efficiency and, beyond it, predicted efficiency with its bands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import altair as alt

from analysis.base.text import gpus_text, hours_unit, number, percent, printable, shortened, span
from analysis.report.best import NAMED
from analysis.report.charts.axes import by_x, counts_axis, percent_axis
from analysis.report.charts.chart import (
    HEIGHT,
    Chart,
    calculated,
    keep,
    layer,
    log_switches,
    picked_in_legend,
    spec_of,
    where_picked,
)
from analysis.report.charts.cuts import ARROWS, arrowheads, cut, limits
from analysis.report.charts.looks import (
    Looks,
    band,
    faded,
    hovered,
    line,
    reference_line,
    reference_text,
    signs,
    tooltips,
)
from analysis.report.charts.names import sentence
from analysis.report.palette import hollow_notes, is_hollow
from analysis.report.sentences import unit_of
from analysis.scaling.report_forecast import Outlook
from analysis.tables.series import series_in_order

if TYPE_CHECKING:
    from analysis.report.findings import Findings

SIZES = "sizes"  # dataset name
MOST_REFUSALS = 6  # sentences of the note
HOVERED = {
    "series": "series",
    "where": "on",
    "what": "efficiency",
    "interval": "90 % interval",
    "middle": "50 % interval",
    "rate": "samples per second",
    "trivial": "linear, flat",
    "hours": "an epoch costs",
    "marks": "warnings",
}


def prediction_charts(findings: Findings, looks: Looks) -> list[Chart]:
    """Return the charts, or nothing if no series could be predicted; `findings.outlook` has the reasons."""
    predicted = [one for one in findings.outlook if one.forecasts]
    if not predicted:
        return []
    marks = {(point.series, point.gpus, point.nodes): point.marks for point in findings.points}
    data = [row for one in predicted for row in _rows(one, looks, marks)]
    looks = looks.ordered_by({one.point.series: _rows(one, looks, marks)[-1]["law"] for one in predicted})
    max(data, key=lambda row: row["gpus"])["labelled"] = True
    _cut_bands(data)
    counts = {row["gpus"] for row in data}
    title = unit_of(one.point for one in predicted)
    return [
        Chart(
            "prediction",
            "Efficiency at sizes that were not measured",
            "prediction",
            spec_of(
                {"height": HEIGHT, "layer": _layers(data, looks, counts_axis(counts, title))},
                {SIZES: data},
                [*looks.controls(), *log_switches(log_x=True)],
            ),
            f"Measured and predicted efficiency of {len(predicted)} series over the number of {title}, up to eight "
            "times the largest measured size, with 50 % and 90 % intervals; the table beside it has the same figures.",
            _note(findings, predicted, any(row["cut_high"] for row in data)),
            legend_letters=looks.legend_letters,
        )
    ]


def _rows(
    outlook: Outlook, looks: Looks, marks_at: Mapping[tuple[str, int, int], Sequence[str]]
) -> list[dict[str, Any]]:
    """Return rows of measured sizes, and of predicted ones from the largest measured size on.

    Efficiency is relative to what was measured at the smallest size, as in `python -m analysis predict`.
    """
    first = outlook.forecasts[0]
    assert first.measured is not None, "the smallest size was measured"
    one_gpu = first.measured / first.gpus
    device, marks = outlook.point.device, ", ".join(outlook.marks)
    rows = []
    for one in outlook.forecasts:
        if one.rate is None:
            continue

        def share(rate: float, gpus: int = one.gpus) -> float:
            return float(f"{rate / gpus / one_gpu:.7g}")  # further digits depend on the processor

        known = one.measured is not None
        value = one.rate.median if one.measured is None else one.measured
        central = (one.rate.central50, one.rate.central90)
        (low50, high50), (low90, high90) = (each.mapped(share).ends for each in central)
        hours = (
            f"{number(one.epoch_gpu_hours)} {hours_unit(device)}" if one.epoch_gpu_hours is not None else "not known"
        )
        remarks = ", ".join(filter(None, (*one.caveats, marks)))
        rows.append(
            {
                **looks.row(outlook.point),
                "gpus": one.gpus,
                "known": known,
                "beyond": one.gpus >= outlook.largest,
                "hollow": is_hollow(marks_at.get((outlook.point.series, one.gpus, one.nodes), outlook.marks)),
                "y": share(value),
                "law": share(one.rate.median),
                "low50": low50,
                "high50": high50,
                "low90": low90,
                "high90": high90,
                "linear": share(one.linear),
                "flat": share(one.flat),
                "where": gpus_text(one.gpus, device) + (f" on {one.nodes} nodes" if one.nodes > 1 else ""),
                "what": f"{percent(share(value), 1)}, {'measured' if known else 'predicted'}",
                "interval": span(low90, high90, percent),
                "middle": span(low50, high50, percent),
                "rate": number(value) + ("" if known else f" ({span(*one.rate.central90.ends)})"),
                "trivial": f"{number(one.linear)}, {number(one.flat)} {outlook.point.rate_unit}",
                "hours": hours if not known else f"{hours}, by the prediction",
                "marks": shortened(printable(remarks), 200) or "none",
            }
        )
    return rows


def _cut_bands(data: Sequence[dict[str, Any]]) -> None:
    """Cut the 90 % bands that are too high for the chart; the number is at the largest size of a series."""
    within = (0.0, limits([1.0, *(row["y"] for row in data)])[1])
    last = {row["series"]: row for row in sorted(data, key=lambda row: row["gpus"])}
    for row in data:
        row |= {"drawn_low": row["low90"], "drawn_high": min(row["high90"], within[1]), "cut_low": None}
        row |= {"cut_high": None, "place_low": 0, "place_high": 0}
    cut([row for row in last.values() if row["beyond"]], ("low90", "high90"), within, percent)


def _layers(data: Sequence[dict[str, Any]], looks: Looks, x: alt.X) -> list[dict[str, Any]]:
    top = max(1.1, *(row["drawn_high"] for row in data if row["beyond"]), *(row["y"] for row in data))

    def y(field: str) -> alt.Y:
        return percent_axis(field, "efficiency", top)

    at = [*looks.chosen(), *calculated(x=by_x("gpus"))]
    beyond = [*at, keep("datum.beyond")]
    each, colour = alt.Detail("series:N"), looks.colour()
    value: dict[str, Any] = {"x": x, "y": y("y"), "opacity": faded()}

    def banded(level: int, opacity: float) -> dict[str, Any]:
        shade = alt.Opacity(**where_picked(opacity, 0.02))
        return layer(
            SIZES,
            band(),
            beyond,
            x=x,
            y=y(f"low{level}"),
            y2=alt.Y2("drawn_high:Q" if level == 90 else f"high{level}:Q"),
            color=colour,
            detail=each,
            opacity=shade,
        )

    known = [*at, keep("datum.known")]
    picked = [picked_in_legend("name")]
    dot = alt.MarkDef(type="point", size=18, filled=True, tooltip=None)
    further = layer(SIZES, dot, [*at, keep("!datum.known")], **value, color=colour)
    return [
        layer(SIZES, reference_line(), at, x=x, y=y("linear"), detail=each),
        layer(SIZES, reference_text("linear"), [*at, keep("datum.labelled")], x=x, y=y("linear")),
        banded(90, 0.12),
        banded(50, 0.22),
        layer(SIZES, reference_line(), beyond, x=x, y=y("flat"), stroke=looks.stroke(), detail=each, opacity=faded()),
        layer(
            SIZES,
            line(strokeWidth=1.2),
            beyond,
            picked,
            x=x,
            y=y("law"),
            color=colour,
            detail=each,
            opacity=faded(),
        ),
        layer(SIZES, line(), known, **value, color=colour, detail=each),
        *signs(SIZES, [row for row in data if row["known"]], known, looks, **value),
        *([further] if any(not row["known"] for row in data) else []),
        *arrowheads(SIZES, data, at, looks, x, lambda end: y(f"drawn_{end}"), False),
        layer(SIZES, hovered(), at, x=x, y=y("y"), tooltip=tooltips(**HOVERED)),
    ]


def _note(findings: Findings, predicted: Sequence[Outlook], are_cut: bool) -> str:
    parts = [
        "large symbols: measured; small ones: predicted, with 50 % and 90 % intervals of one more measurement there",
        "dashed: linear scaling, and the last measured efficiency kept",
    ]
    parts += [ARROWS] if are_cut else []
    parts += hollow_notes(one.marks for one in predicted)
    refused = [
        f"no prediction for {printable(one.point.label)}: {printable(reason)}"
        for one in findings.outlook
        for reason in one.refusals
    ]
    parts += refused[:MOST_REFUSALS]
    if len(refused) > MOST_REFUSALS:
        parts.append(f"{len(refused) - MOST_REFUSALS} further refusals")
    parts += filter(None, (not_looked_into(findings),))
    return sentence(parts)


def not_looked_into(findings: Findings) -> str | None:
    """Return a note on the number of measured series without a prediction here; None if all have one."""
    rest = len(series_in_order(findings.points)) - NAMED
    text = f"{rest:,} further series are not predicted here: python -m analysis predict shows every one"
    return text if rest > 0 else None
