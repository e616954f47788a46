"""A chart of the page, and what all charts share: size, controls, selection of series."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

HEIGHT = 260
CHOICES = ("framework", "model", "strategy")  # signals of the page; "" selects all
LOG_X, LOG_Y = "log_x", "log_y"
EVERY = "every"  # signal of the page: whether all series are shown, where there are many
PICKED = "picked"

# Settings common to the light and dark themes, which set the colours.
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
        "labelLimit": 0,  # names of series wrap
        "rowPadding": 4,
        "offset": 10,
        # Stack two legends vertically (a Vega setting): side by side, the second is cut off on a phone.
        "layout": {"bottom": {"direction": "vertical", "anchor": "start", "margin": 4}},
    },
    "text": {"fontSize": 11},
}


@dataclass(frozen=True)
class Chart:
    """One chart of the page.

    Attributes:
        name: of its HTML element; a-z and '-'.
        title: heading.
        section: "scaling", "breakdown", "learning", "cost", "prediction" or "steadiness".
        spec: Vega-Lite as plain JSON data, including its datasets.
        description: one sentence for screen readers.
        note: what the chart omits and what its symbols mean.
        heads: captions for print, which has no tooltips; a chart with a control has one for each of its first entries.
        legend_letters: of the longest name of a series in the legend, which stands beside the lines where there is
            room; 0 for a legend that stays below.
    """

    name: str
    title: str
    section: str
    spec: dict[str, Any]
    description: str
    note: str | None = None
    heads: Sequence[str] = ("",)
    legend_letters: int = 0


def layer(
    dataset: str,
    mark: alt.MarkDef,
    transform: Sequence[alt.Transform] = (),
    params: Sequence[alt.TopLevelSelectionParameter] = (),
    **encoding: Any,
) -> dict[str, Any]:
    """Return a layer that draws the rows of a dataset of `spec_of`, as plain data. encoding: Altair's channels.

    Built in one call and without validation: Altair's chained methods copy the whole chart each time, and validation
    takes longer than everything else. The tests validate.
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
    """Return a complete spec. drawing: {"layer": [...]} and further properties. controls: parameters set by the
    page."""
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
    """Replace non-finite numbers, which JSON lacks, by None; they are not drawn."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}


def choices() -> list[alt.VariableParameter]:
    """Parameters for the page's filters: framework, model, strategy."""
    return [alt.VariableParameter(name=name, value="") for name in CHOICES]


def log_switches(**on: bool) -> list[alt.VariableParameter]:
    """Parameters log_x and log_y with their initial values: whether the axis is logarithmic."""
    return [alt.VariableParameter(name=name, value=value) for name, value in on.items()]


def keep(test: str) -> alt.FilterTransform:
    return alt.FilterTransform(filter=test)


def chosen() -> alt.FilterTransform:
    """Keep the rows of the selected framework, model and strategy."""
    return keep(" && ".join(f"({name} === '' || datum.{name} === {name})" for name in CHOICES))


def calculated(**expressions: str) -> list[alt.CalculateTransform]:
    return [alt.CalculateTransform(calculate=text, **{"as": name}) for name, text in expressions.items()]


def looked_up(dataset: str, key: str, facts: Sequence[Mapping[str, Any]]) -> alt.LookupTransform:
    """Join each row with the dataset's row that has the same key. facts: the rows of the dataset."""
    fields = [name for name in facts[0] if name != key]
    return alt.LookupTransform(
        lookup=key, **{"from": alt.LookupData(data=alt.NamedData(dataset), key=key, fields=fields)}
    )


def picked_in_legend(field: str) -> alt.TopLevelSelectionParameter:
    """Series clicked in the legend; all until one is clicked. Only for a layer that owns the field's legend."""
    return alt.TopLevelSelectionParameter(name=PICKED, select={"type": "point", "fields": [field]}, bind="legend")


def where_picked(yes: Any, no: Any) -> dict[str, Any]:
    """Return a channel's values for selected series and for the others."""
    return {"condition": {"param": PICKED, "value": yes}, "value": no}
