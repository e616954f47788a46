"""Intervals that reach beyond a chart: drawn up to its edge, where an arrowhead and a number say how far they go."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import altair as alt

from analysis.report.charts.chart import LOG_Y, keep, layer
from analysis.report.charts.looks import Looks

# Limits of an axis, relative to the smallest and the largest value on it. A wider interval would flatten the lines.
BELOW, ABOVE = 0.25, 1.5
ARROWS = "arrowhead with a number: the interval ends there, beyond the chart"  # for the note
LINE = 12  # pixels between the numbers of several series at the same place


def limits(values: Iterable[float | None]) -> tuple[float, float]:
    """Return how far down and up intervals are drawn in a chart of these values; the lower limit is for a logarithmic
    axis: a linear one begins at 0."""
    known = [value for value in values if value is not None and math.isfinite(value) and value > 0]
    return (BELOW * min(known), ABOVE * max(known)) if known else (0.0, math.inf)


def cut(
    rows: Sequence[dict[str, Any]],
    ends: tuple[str, str],
    within: tuple[float, float],
    show: Callable[[float], str],
    at: str = "gpus",
) -> None:
    """Add to each row drawn_low and drawn_high, its interval within the limits, and where an end is beyond them
    cut_low or cut_high, the number, and place_low or place_high, its line among the numbers at the same place.

    Args:
        ends: fields with the ends of the interval; None where a row has none.
        at: field that says which rows share a place.
    """
    low, high = ends
    lines: Counter[tuple[str, Any]] = Counter()
    for row in rows:
        for end, value, limit, sign in (("low", row[low], within[0], -1), ("high", row[high], within[1], 1)):
            beyond = value is not None and sign * (value - limit) > 0
            row[f"drawn_{end}"] = limit if beyond else value
            row[f"cut_{end}"] = show(value) if beyond else None
            row[f"place_{end}"] = lines[end, row[at]]
            lines[end, row[at]] += beyond


def low_by_y(field: str, log: bool) -> str:
    """Vega expression for the lower end of an interval, in full on a linear axis. log: as for `by_y`."""
    if not log:
        return f"datum.{field}"
    return f"isValid(datum.{field}) ? ({LOG_Y} ? log(datum.drawn_low) / LN10 : datum.{field}) : null"


def arrowheads(
    dataset: str,
    rows: Sequence[Mapping[str, Any]],
    transform: Sequence[alt.Transform],
    looks: Looks,
    x: alt.X,
    y: Callable[[str], alt.Y],
    log: bool,
    **mark: Any,
) -> list[dict[str, Any]]:
    """Layers with an arrowhead and a number at every end that is cut. y: the axis for the fields low and high, which
    `transform` calculates. mark: further properties, such as an offset."""
    middle = (min(row["gpus"] for row in rows) + max(row["gpus"] for row in rows)) / 2 if rows else 0
    right = f"datum.gpus > {middle}"
    side: dict[str, Any] = {
        "align": alt.ExprRef(f"{right} ? 'right' : 'left'"),
        "dx": alt.ExprRef(f"{right} ? -7 : 7"),
    }
    layers = []
    for end, shape, sign in (("low", "triangle-down", -1), ("high", "triangle-up", 1)):
        if not any(row.get(f"cut_{end}") for row in rows):
            continue
        test = f"isValid(datum.cut_{end})" + (f" && {LOG_Y}" if log and end == "low" else "")
        at = [*transform, keep(test)]
        arrow = alt.MarkDef(type="point", shape=shape, size=70, filled=True, tooltip=None, **mark)
        line = alt.ExprRef(f"{sign} * (5 + {LINE} * datum.place_{end})")
        said = alt.MarkDef(type="text", baseline="middle", dy=line, tooltip=None, **side)
        place: dict[str, Any] = {"x": x, "y": y(end), "color": looks.colour()}
        layers += [layer(dataset, arrow, at, **place), layer(dataset, said, at, **place, text=alt.Text(f"cut_{end}:N"))]
    return layers
