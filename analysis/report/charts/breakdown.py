"""Charts of the parts of a step and of what each part costs in efficiency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from analysis.base.text import duration, percent, printable, shortened, span
from analysis.measures.breakdown import PART_NAMES
from analysis.measures.losses import Loss, Losses
from analysis.report.charts.chart import HEIGHT, Chart, keep, layer, spec_of
from analysis.report.charts.looks import Looks, tooltips
from analysis.report.charts.names import marks_text, minus, only_in_table, runs_text, sentence, where
from analysis.report.charts.theme import WHISKER
from analysis.report.losses import LOSS_NAMES, share_text, tenths
from analysis.report.palette import IDEAL, PARTS, hollow_notes, is_hollow
from analysis.report.sentences import baseline, unit_of
from analysis.stats.intervals import Interval
from analysis.tables.series import by_series

BARS, STEPS = "bars", "steps"  # names of datasets
POINT, SERIES = "point", "shown"  # signals, set by a control below the chart
MOST_POINTS, MOST_SERIES = 60, 24  # limits of a control's entries
CHOICE_LENGTH = 60  # characters
BAR = 26  # pixels
SHORT = {"communication": "comm.", "synchronisation": "sync."}  # abbreviated in print
FEWEST_OF_BARS = 12  # minimum width of the bars in print, in letters
FEWEST_OF_TWO_COLUMNS = 50  # letters of a line in print, from which a legend has two columns
IDEAL_BAR, MEASURED_BAR = "ideal", "measured"


def breakdown_charts(losses: Losses, looks: Looks) -> list[Chart]:
    return [*_waterfall(losses, looks), *_parts(losses, looks)]


def _waterfall(losses: Losses, looks: Looks) -> list[Chart]:
    """Waterfall charts of the points that lost efficiency; the largest point of each series comes first."""
    every = [loss for loss in losses.points if loss.shares and loss.point.series in looks.names]
    if not every:
        return []
    every.sort(key=lambda loss: -loss.point.gpus)
    largest = [group[0] for group in by_series(_in_order(every, looks))]
    ordered = [*largest, *(loss for loss in every if not any(loss is one for one in largest))]
    shown = ordered[:MOST_POINTS]
    labels = [f"{where(loss.point)}: {looks.own[loss.point.series]}" for loss in shown]
    data = [row for i, loss in enumerate(shown) for row in _bars(loss, i)]
    height = BAR * (1 + max(row["order"] for row in data))
    parts = ["lines: 95 % intervals", "a bar that goes up is a gain, or noise"]
    parts += [*hollow_notes(loss.point.marks for loss in shown), *only_in_table(len(shown), len(ordered))]
    return [
        Chart(
            "waterfall",
            "From 100 % efficiency to the measured one",
            "breakdown",
            spec_of(
                {"height": height, "layer": _waterfall_layers(data, looks)}, {BARS: data}, [_choice(POINT, labels)]
            ),
            "What each part of a step takes away from 100 % efficiency, of one point that is chosen below; the table "
            "of losses has the figures of all points.",
            sentence(parts),
            [_head(loss, label) for loss, label in zip(largest, labels, strict=False)],
        )
    ]


def _head(loss: Loss, label: str) -> str:
    return "; ".join((f"{label}, relative to {baseline(loss.point)}", f"from {loss.basis}", *loss.point.marks))


def _bars(loss: Loss, at: int) -> list[dict[str, Any]]:
    """Return the bars: the ideal efficiency, the loss to each part, and what remains."""
    hollow = is_hollow(loss.point.marks)
    shared = {"point": at, "hollow": hollow, "where": where(loss.point), "marks": marks_text(loss.point)}
    shared |= {"baseline": baseline(loss.point), "basis": printable(loss.basis or "none")}

    def bar(label: str, start: float, end: float, text: str, figure: str) -> dict[str, Any]:
        whole = {**shared, "label": label, "start": min(start, end), "end": max(start, end)}
        return {**whole, "text": minus(text), "figure": minus(figure)}

    rows = [bar(IDEAL_BAR, 0, 1, "100 %", "100 %")]
    level = 1.0
    for part, share in loss.shares.items():
        name = LOSS_NAMES[part].replace(" together", "")
        row = bar(name, level, level - share.estimate, tenths(share.estimate), share_text(share))
        if share.low is not None and share.high is not None:
            row |= {"low": level - share.high, "high": level - share.low}
        rows.append({**row, "part": part})
        level -= share.estimate
    rows.append(bar(MEASURED_BAR, 0, level, percent(level, 1), percent(level, 1)))
    return [{**row, "order": i} for i, row in enumerate(rows)]


def _waterfall_layers(data: Sequence[Mapping[str, Any]], looks: Looks) -> list[dict[str, Any]]:
    ends = [row[name] for row in data for name in ("start", "end", "low", "high") if row.get(name) is not None]
    # Leave space to the right of the bars for their labels.
    low, high = min(0.0, *ends), max(1.0, *ends)
    room, shown, names_axis = 0.16, "text", alt.Axis(labelLimit=170)
    edge: dict[str, Any] = {"x": alt.X("edge:Q")}
    if looks.letters is not None:  # in one column; with intervals if enough width remains
        expression = "datum.label"
        for long, abbreviated in SHORT.items():
            expression = f"replace({expression}, '{long}', '{abbreviated}')"
        names_axis = alt.Axis(labelLimit=1000, labelExpr=expression)
        free = looks.letters - max(len(short(row["label"])) for row in data)
        shown = "figure" if free - max(len(row["figure"]) for row in data) >= FEWEST_OF_BARS else "text"
        width = 2 + max(len(row[shown]) for row in data)
        room = (high - low) * width / max(FEWEST_OF_BARS, free - width)
        edge = {"x": alt.X(datum=high)}
    y = alt.Y("label:N", sort=alt.EncodingSortField("order", op="min"), title=None, axis=names_axis)
    x = alt.X(
        "start:Q",
        title="efficiency",
        scale=alt.Scale(domain=[low, high + room], nice=False),
        axis=alt.Axis(values=[0, 0.25, 0.5, 0.75, 1], labelExpr="format(100 * datum.value, '.0f') + ' %'", grid=True),
    )
    at = [keep(f"datum.point === {POINT}")]
    names = [IDEAL_BAR, *(LOSS_NAMES[part].replace(" together", "") for part in PARTS), MEASURED_BAR]
    colours = [IDEAL.colour, *(look.colour for look in PARTS.values()), IDEAL.colour]
    scale = alt.Scale(domain=names, range=colours)
    hovering = tooltips(
        label="part", figure="efficiency", basis="interval from", where="on", baseline="relative to", marks="warnings"
    )
    return [
        layer(
            BARS,
            alt.MarkDef(type="bar", height={"band": 0.68}, strokeWidth=1.4),
            at,
            y=y,
            x=x,
            x2=alt.X2("end:Q"),
            fill=alt.Fill("label:N", scale=scale, legend=None),
            stroke=alt.Stroke("label:N", scale=scale, legend=None),
            fillOpacity=alt.FillOpacity(condition={"test": "datum.hollow", "value": 0.12}, value=0.9),
            tooltip=hovering,
        ),
        *_whiskers(BARS, data, at, y=y, x=alt.X("low:Q"), x2=alt.X2("high:Q")),
        layer(
            BARS,
            alt.MarkDef(type="text", align="left", baseline="middle", dx=6, tooltip=None),
            [*at, alt.CalculateTransform(calculate="max(datum.end, datum.high || 0)", **{"as": "edge"})],
            y=y,
            **edge,
            text=alt.Text(f"{shown}:N"),
        ),
    ]


def _parts(losses: Losses, looks: Looks) -> list[Chart]:
    """Seconds of each part against the number of GPUs, for a selectable series."""
    known = [loss for loss in losses.points if loss.parts is not None and loss.point.series in looks.names]
    groups = by_series(_in_order(known, looks))
    if not groups:
        return []
    shown = groups[:MOST_SERIES]
    labels = [looks.own[group[0].point.series] for group in shown]
    data = [row for i, group in enumerate(shown) for loss in group for row in _stack(loss, i)]
    points = [loss.point for group in shown for loss in group]
    title = unit_of(points)
    parts = ["lines: 95 % intervals of each part, at its end", "a part below 0 is noise of the measurement"]
    parts += [note.replace("hollow", "pale") for note in hollow_notes(point.marks for point in points)]
    parts += only_in_table(len(shown), len(groups), "series")
    return [
        Chart(
            "step-time",
            "Where the time of a step goes",
            "breakdown",
            spec_of(
                {"height": HEIGHT, "layer": _stack_layers(title, data, looks)}, {STEPS: data}, [_choice(SERIES, labels)]
            ),
            f"Seconds of each part of a step over the number of {title}, of one series that is chosen below; the table "
            "of losses has the same figures.",
            sentence(parts),
            labels,
        )
    ]


def _stack(loss: Loss, at: int) -> list[dict[str, Any]]:
    """Stack positive parts upwards from 0 and negative ones downwards, in milliseconds."""
    assert loss.parts is not None
    point, parts = loss.point, loss.parts
    shared = {"series": at, "gpus": point.gpus, "on": where(point), "hollow": is_hollow(point.marks)}
    shared |= {"marks": marks_text(point), "basis": printable(parts.basis), "runs": runs_text(point)}
    up = down = 0.0
    rows: list[dict[str, Any]] = []
    for order, part in enumerate(name for name in PARTS if name in parts.seconds):
        seconds: Interval = parts.seconds[part]
        start = up if seconds.estimate >= 0 else down
        end = start + seconds.estimate
        up, down = (end, down) if seconds.estimate >= 0 else (up, end)
        interval = "none" if seconds.low is None else span(seconds.low, seconds.high, duration)
        row = {**shared, "part": PART_NAMES[part], "order": order, "start": 1000 * start, "end": 1000 * end}
        row |= {"said": minus(duration(seconds.estimate)), "interval": minus(interval)}
        row["share"] = minus(percent(seconds.estimate / parts.step_seconds, 1))
        if seconds.low is not None and seconds.high is not None:
            row |= {"low": 1000 * (start + seconds.low), "high": 1000 * (start + seconds.high)}
        rows.append(row)
    rows[-1] |= {"top": 1000 * up, "total": duration(parts.step_seconds)}
    return rows


def _stack_layers(title: str, data: Sequence[Mapping[str, Any]], looks: Looks) -> list[dict[str, Any]]:
    at = [keep(f"datum.series === {SERIES}")]
    x = alt.X("on:N", title=title, sort=alt.EncodingSortField("gpus", op="min"), axis=_counts_alone())
    y = alt.Y(
        "start:Q", title="milliseconds per step", axis=alt.Axis(tickCount=6, labelExpr="format(datum.value, ',~r')")
    )
    colours = {PART_NAMES[part]: look.colour for part, look in PARTS.items()}
    found = [name for name in colours if any(row["part"] == name for row in data)]
    scale = alt.Scale(domain=found, range=[colours[name] for name in found])
    hovering = tooltips(
        part="part",
        said="time",
        interval="95 % interval",
        share="of the step",
        on="on",
        runs="runs",
        basis="from",
        marks="warnings",
    )
    columns = 2 if looks.letters is None or looks.letters >= FEWEST_OF_TWO_COLUMNS else 1
    offset = alt.XOffset("order:O", scale=alt.Scale(paddingOuter=1))
    return [
        layer(
            STEPS,
            alt.MarkDef(type="bar", width={"band": 0.62}, strokeWidth=1),
            at,
            x=x,
            y=y,
            y2=alt.Y2("end:Q"),
            color=alt.Color("part:N", scale=scale, legend=alt.Legend(columns=columns, symbolType="square")),
            opacity=alt.Opacity(condition={"test": "datum.hollow", "value": 0.45}, value=1),
            tooltip=hovering,
        ),
        *_whiskers(STEPS, data, at, x=x, xOffset=offset, y=alt.Y("low:Q"), y2=alt.Y2("high:Q")),
        layer(
            STEPS,
            alt.MarkDef(type="text", dy=-7, tooltip=None),
            [*at, keep("isValid(datum.total)")],
            x=x,
            y=alt.Y("top:Q"),
            text=alt.Text("total:N"),
        ),
    ]


def _whiskers(
    dataset: str, data: Sequence[Mapping[str, Any]], at: Sequence[alt.Transform], **encoding: Any
) -> list[dict[str, Any]]:
    """Interval lines of the rows that have an interval."""
    if not any("low" in row for row in data):
        return []
    mark = alt.MarkDef(type="rule", strokeWidth=1.2, style=WHISKER, tooltip=None)
    return [layer(dataset, mark, [*at, keep("isValid(datum.low)")], **encoding)]


def _counts_alone() -> alt.Axis:
    """Labels such as '8 on 2 nodes', on two lines: the axis title states the unit."""
    words = "split(replace(datum.label, / (GPUs?|CPU ranks?)/, ''), ' on ')"
    return alt.Axis(labelAngle=0, labelExpr=words, labelLimit=90)


def _in_order(losses: Sequence[Loss], looks: Looks) -> list[Loss]:
    """Sort in the order of the palette; within a series, keep the given order."""
    places = {key: i for i, key in enumerate(looks.names)}
    return sorted(losses, key=lambda loss: places[loss.point.series])


def short(label: str) -> str:
    """Abbreviate the name of a part, for print."""
    for long, abbreviated in SHORT.items():
        label = label.replace(long, abbreviated)
    return label


def _choice(name: str, labels: Sequence[str]) -> alt.VariableParameter:
    """Control that selects one of the labels by index; a constant if there is only one."""
    if len(labels) == 1:
        return alt.VariableParameter(name=name, value=0)
    said = [shortened(label, CHOICE_LENGTH) for label in labels]
    bind = alt.BindRadioSelect(input="select", options=list(range(len(labels))), labels=said, name="shown: ")
    return alt.VariableParameter(name=name, value=0, bind=bind)
