"""Axes that the page can switch between linear and logarithmic.

Vega-Lite cannot switch the type of a scale, so charts draw the value or its logarithm, depending on a signal, and axis
labels undo the logarithm.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

import altair as alt

from analysis.report.charts.chart import LOG_X, LOG_Y

# Labels overlap if closer than the largest count divided by the first, or than a ratio of the second.
LINEAR_SPACE, LOG_SPACE = 14, 1.3
MOST_TICKS = 12


def by_x(field: str) -> str:
    """Vega expression for a field on the x axis; null if the value is missing."""
    return _drawn(field, LOG_X)


def by_y(field: str, log: bool = True) -> str:
    """Vega expression for a field on the y axis. log: whether the axis can be logarithmic."""
    return _drawn(field, LOG_Y if log else "false")


def _drawn(field: str, switch: str) -> str:
    return f"isValid(datum.{field}) ? ({switch} ? log(datum.{field}) / LN10 : datum.{field}) : null"


def counts_axis(counts: Iterable[int], title: str) -> alt.X:
    """Axis of GPU counts, with as many ticks at measured counts as fit."""
    ordered = sorted(set(counts))
    linear = _apart(ordered, lambda a, b: b - a >= ordered[-1] / LINEAR_SPACE)
    logarithmic = [math.log10(n) for n in _apart(ordered, lambda a, b: b >= LOG_SPACE * a)]
    return alt.X(
        "x:Q",
        title=title,
        scale=alt.Scale(zero=False, nice=False, padding=14),
        axis=alt.Axis(
            values=alt.ExprRef(f"{LOG_X} ? {json.dumps(logarithmic)} : {json.dumps(linear)}"),
            labelExpr=f"format({LOG_X} ? round(pow(10, datum.value)) : datum.value, ',')",
        ),
    )


def log_axis(field: str, values: Iterable[float], title: str, base: int = 10) -> alt.Y:
    """Y axis; starts at 0 if linear. base: 2 for ticks at powers of 2, 10 for 1, 2 and 5 times powers of 10."""
    return alt.Y(f"{field}:Q", title=title, **_switched(LOG_Y, values, base))


def log_x_axis(field: str, values: Iterable[float], title: str) -> alt.X:
    """X axis, like `log_axis`."""
    return alt.X(f"{field}:Q", title=title, **_switched(LOG_X, values, 10))


def _switched(switch: str, values: Iterable[float], base: int) -> dict[str, Any]:
    known = [value for value in values if value > 0 and math.isfinite(value)]
    ticks = _log_ticks(min(known), max(known), base) if known else []
    return {
        # No padding on a linear axis: it would start below 0, impossible for these quantities.
        "scale": alt.Scale(
            zero=alt.ExprRef(f"!{switch}"),
            nice=alt.ExprRef(f"!{switch}"),
            padding=alt.ExprRef(f"{switch} ? 8 : 0"),
        ),
        "axis": alt.Axis(
            values=alt.ExprRef(f"{switch} ? {json.dumps([math.log10(t) for t in ticks])} : null"),
            labelExpr=f"format({switch} ? pow(10, datum.value) : datum.value, ',.3~r')",
            tickCount=6,
        ),
    }


def percent_axis(
    field: str, title: str, top: float, bottom: float = 0.0, ticks: Sequence[float] | None = None
) -> alt.Y:
    """Linear axis of fractions, in per cent. ticks: where labels are; None for about six of them."""
    return alt.Y(
        f"{field}:Q",
        title=title,
        scale=alt.Scale(domain=[bottom, top], nice=False, clamp=True),
        axis=alt.Axis(
            labelExpr="format(100 * datum.value, '.3~r') + ' %'",
            tickCount=6,
            values=alt.Undefined if ticks is None else list(ticks),
        ),
    )


def _log_ticks(low: float, high: float, base: int) -> list[float]:
    if base == 2 and high >= 3 * low:
        return [2.0**i for i in _exponents(low, high, 2)]
    if high >= 8 * low:
        decades = _exponents(low, high, 10)
        steps = (1, 2, 5) if len(decades) < 5 else (1,)
        return [step * 10.0**i for i in decades for step in steps]
    # Less than a decade: a few evenly spaced ticks.
    unit = 10.0 ** math.floor(math.log10(high - low if high > low else low))
    step = next(part * unit for part in (5, 2, 1, 0.5, 0.2, 0.1) if part == 0.1 or (high - low) / (part * unit) >= 3)
    return [i * step for i in range(max(1, math.floor(low / step)), math.ceil(high / step) + 1)]


def _exponents(low: float, high: float, base: int) -> range:
    """Return exponents of the powers from low to high, at most about a dozen, within the range of a float."""
    most = math.floor(math.log(1e300, base))
    first, last = (min(most, max(-most, math.floor(math.log(value, base)))) for value in (low, high))
    return range(first, last + 2, 1 + (last - first) // MOST_TICKS)


def _apart(ordered: Sequence[int], far: object) -> list[int]:
    """Keep numbers that are far enough apart, always including the last."""
    kept: list[int] = []
    for n in reversed(ordered):
        if not kept or far(n, kept[-1]):  # type: ignore[operator]
            kept.append(n)
    return kept[::-1]
