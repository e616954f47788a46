"""The interactive drawings of the report's page: Vega-Lite, built with Altair, drawn by a script in the page."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.charts.chart import VEGA_LITE, Chart
from analysis.charts.theme import themes

if TYPE_CHECKING:
    from analysis.findings import Findings

__all__ = ["Chart", "charts_of", "themes", "vega_script"]


def charts_of(findings: Findings) -> list[Chart]:
    """Every drawing that the study has figures for, in the order of the page."""
    from altair.utils.schemapi import debug_mode

    from analysis.charts.breakdown import breakdown_charts
    from analysis.charts.cost import cost_charts
    from analysis.charts.learning import learning_charts
    from analysis.charts.looks import looks_of
    from analysis.charts.prediction import prediction_charts
    from analysis.charts.scaling import scaling_charts
    from analysis.charts.steadiness import steadiness_charts

    looks = looks_of(findings.rows)
    with debug_mode(False):  # each part against Vega-Lite's schema: the tests do that
        return [
            *scaling_charts(findings.rows, looks),
            *breakdown_charts(findings.losses, looks),
            *learning_charts(findings.learning, looks),
            *cost_charts(findings.decisions, looks),
            *prediction_charts(findings, looks),
            *steadiness_charts(findings, looks),
        ]


@cache
def vega_script() -> str:
    """The JavaScript of Vega, Vega-Lite and Vega-Embed (0.9 MB), which sets `vegaEmbed` of the page's window; what
    that draws has legends that the keyboard reaches. It loads nothing from elsewhere."""
    import vl_convert

    # By default it does nothing but set what is exported; the stub has `snippet` without its default.
    bundle = vl_convert.javascript_bundle(None, vl_version=VEGA_LITE)  # type: ignore[arg-type]
    return bundle + (Path(__file__).parent / "legend.js").read_text(encoding="utf-8")
