"""One drawing of the page, and what all of them share: size, controls, the choice of series."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

# As altair's own schema, and one that vl-convert has.
VEGA_LITE = "6.4"
HEIGHT = 260
CHOICES = ("framework", "model", "strategy")  # signals of the page: "" is all
LOG_X, LOG_Y = "log_x", "log_y"
PICKED = "picked"

# What is the same on a light and on a dark page; colours are those of the page's theme.
STRUCTURE: dict[str, Any] = {
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "axis": {
        "labelFontSize": 11,
        "titleFontSize": 11,
        "titleFontWeight": "normal",
        "titlePadding": 8,
        "labelPadding": 5,
        "ticks": False,
        "domain": False,
        "gridWidth": 0.8,
        "labelOverlap": "greedy",
        "labelSeparation": 6,
    },
    "axisX": {"grid": False, "ticks": True, "tickSize": 4, "domain": True},
    "legend": {
        "orient": "bottom",
        "direction": "vertical",
        "columns": 1,
        "title": None,
        "labelFontSize": 11,
        "symbolSize": 70,
        "labelLimit": 290,
        "rowPadding": 4,
        "offset": 10,
        # Two legends under each other: side by side the second is cut off on a phone. A setting of Vega's.
        "layout": {"bottom": {"direction": "vertical", "anchor": "start", "margin": 4}},
    },
    "text": {"fontSize": 11},
}


@dataclass(frozen=True)
class Chart:
    """One drawing of the page.

    name: of its element, in a-z and '-'. title: above it. section: "scaling", "breakdown", "learning", "cost",
    "prediction" or "steadiness". spec: Vega-Lite as plain JSON data, its data within. description: one sentence for who
    does not see it. note: what it leaves out, and what its signs mean; one sentence or more. heads: for print,
    where nobody can hover: what the figure shows; a chart with a choice has one for each of its first entries.
    """

    name: str
    title: str
    section: str
    spec: dict[str, Any]
    description: str
    note: str | None = None
    heads: Sequence[str] = ("",)


def layer(
    dataset: str,
    mark: alt.MarkDef,
    transform: Sequence[alt.Transform] = (),
    params: Sequence[alt.TopLevelSelectionParameter] = (),
    **encoding: Any,
) -> dict[str, Any]:
    """What draws the rows of one of the datasets of `spec_of`, as plain data. encoding: altair's channels.

    Made in one go and not validated: altair's chained methods copy the whole drawing at each call, and its check
    against Vega-Lite's schema takes longer than all else. The tests validate.
    """
    drawn = alt.Chart(
        data=alt.NamedData(dataset),
        mark=mark,
        transform=list(transform) or alt.Undefined,
        params=list(params) or alt.Undefined,
        encoding=alt.FacetedEncoding(**encoding),
    ).to_dict(validate=False)
    return {key: value for key, value in drawn.items() if key not in ("$schema", "config")}


def spec_of(
    drawing: Mapping[str, Any], datasets: Mapping[str, Sequence[Any]], controls: Iterable[alt.VariableParameter] = ()
) -> dict[str, Any]:
    """A whole specification. drawing: {"layer": [...]} and what else there is. controls: params that the page sets."""
    params = [control.to_dict(validate=False) for control in controls]
    return {
        "$schema": alt.SCHEMA_URL,
        "config": STRUCTURE,
        "width": "container",
        "datasets": {name: [_finite(row) for row in rows] for name, rows in datasets.items()},
        **({"params": params} if params else {}),
        **drawing,
    }


def _finite(row: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no infinity; what has none is not drawn."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}


def choices() -> list[alt.VariableParameter]:
    """What the page's controls set: only this framework, model, strategy."""
    return [alt.VariableParameter(name=name, value="") for name in CHOICES]


def log_switches(**on: bool) -> list[alt.VariableParameter]:
    """log_x, log_y: whether the axis is logarithmic until the page says otherwise."""
    return [alt.VariableParameter(name=name, value=value) for name, value in on.items()]


def keep(test: str) -> alt.FilterTransform:
    return alt.FilterTransform(filter=test)


def chosen() -> alt.FilterTransform:
    """Keeps the rows of the chosen framework, model and strategy."""
    return keep(" && ".join(f"({name} === '' || datum.{name} === {name})" for name in CHOICES))


def calculated(**expressions: str) -> list[alt.CalculateTransform]:
    return [alt.CalculateTransform(calculate=text, **{"as": name}) for name, text in expressions.items()]


def looked_up(dataset: str, key: str, facts: Sequence[Mapping[str, Any]]) -> alt.LookupTransform:
    """Joins each row with the row of the dataset that has the same key. facts: the dataset's rows."""
    fields = [name for name in facts[0] if name != key]
    return alt.LookupTransform(
        lookup=key, **{"from": alt.LookupData(data=alt.NamedData(dataset), key=key, fields=fields)}
    )


def picked_in_legend(field: str) -> alt.TopLevelSelectionParameter:
    """The series that were clicked in the legend; all until one was. Of a layer that has the field's legend itself."""
    return alt.TopLevelSelectionParameter(name=PICKED, select={"type": "point", "fields": [field]}, bind="legend")


def where_picked(yes: Any, no: Any) -> dict[str, Any]:
    """A value of a channel for the series that are picked, and one for the others."""
    return {"condition": {"param": PICKED, "value": yes}, "value": no}
