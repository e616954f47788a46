"""The specs of charts for print."""

from __future__ import annotations

from typing import Any

from analysis.base.text import shortened
from analysis.report.charts.chart import EVERY, STRUCTURE, Chart
from analysis.report.charts.theme import themes
from analysis.report.print.paper import MM, Paper

FONT = "Liberation Sans"  # bundled with vl-convert, so figures are the same on every machine
HEAD_LENGTH, NOTE_LENGTH = 400, 1200  # characters


def figure_spec(chart: Chart, paper: Paper, number: int = 0, common: str = "", beside: bool = False) -> dict[str, Any]:
    """Return the spec of a chart for print.

    Args:
        number: index into `chart.heads` and into the entries of the chart's control.
        common: what all series have in common, in words.
        beside: whether the legend stands beside the plot.
    """
    head = "; ".join(filter(None, (common, chart.heads[number])))
    layers = [each for each in chart.spec["layer"] if each["mark"].get("opacity") != 0]  # without hover targets
    params = [
        {"name": param["name"], "value": number if "bind" in param else param["name"] == EVERY or param["value"]}
        for param in chart.spec.get("params", ())
    ]
    of_page = page(paper, paper.width_mm, head, chart.note or "")
    if beside:
        of_page["config"]["legend"] |= {"orient": "right", "offset": 4}
    return {
        **chart.spec,
        **of_page,
        "autosize": {"type": "fit-x", "contains": "padding"},
        "width": paper.width_mm * MM,
        "height": paper.height(chart.spec["height"]),
        "layer": layers,
        "params": params,
    }


def page(paper: Paper, width_mm: float, head: str, note: str) -> dict[str, Any]:
    """Return what the specs of all figures share: configuration and caption lines."""
    lines = paper.wrapped(shortened(head, HEAD_LENGTH), width_mm)
    notes = paper.wrapped(shortened(note, NOTE_LENGTH), width_mm)
    return {
        "config": _config(paper, width_mm),
        "padding": 3,
        "title": {"text": lines or notes, **({"subtitle": notes} if lines else {})},
    }


def _config(paper: Paper, width_mm: float) -> dict[str, Any]:
    """Return the page's light theme with sizes for paper."""
    font, width = paper.font, width_mm * MM
    words = {"fontSize": font, "subtitleFontSize": font, "fontWeight": "normal", "lineHeight": 1.2 * font}
    words |= {"subtitleFontWeight": "normal", "subtitleLineHeight": 1.2 * font, "subtitlePadding": 2, "limit": width}
    labels = {"labelFontSize": font, "titleFontSize": font}
    changed: dict[str, Any] = {
        "axis": {**labels, "titlePadding": 4, "labelPadding": 3},
        "legend": {**labels, "labelLimit": width - 2 * font, "rowPadding": 2, "offset": 6, "symbolSize": 50},
        "text": {"fontSize": font},
        "title": {**words, "orient": "bottom", "anchor": "start", "frame": "bounds", "offset": 6},
    }
    light = themes()["light"]
    config = {key: {**STRUCTURE.get(key, {}), **light.get(key, {}), **changed.get(key, {})} for key in changed}
    # aria labels would repeat every value of the chart.
    fixed = {"font": FONT, "background": "white", "lineBreak": "\n", "aria": False}
    return {**STRUCTURE, **light, **config, **fixed}
