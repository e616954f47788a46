"""All charts of a study's page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from analysis.report.charts.chart import Chart
    from analysis.report.charts.looks import Looks
    from analysis.report.findings import Findings


def charts_of(findings: Findings, looks: Looks | None = None) -> Iterator[Chart]:
    """Yield the charts that the study has data for, in the order of the page. looks: defaults to the page's own."""
    from altair.utils.schemapi import debug_mode

    from analysis.report.charts.breakdown import breakdown_charts
    from analysis.report.charts.cost import cost_charts
    from analysis.report.charts.learning import learning_charts
    from analysis.report.charts.looks import looks_of
    from analysis.report.charts.prediction import prediction_charts
    from analysis.report.charts.scaling import scaling_charts
    from analysis.report.charts.steadiness import steadiness_charts

    looks = looks or looks_of(findings.points)
    with debug_mode(False):  # each part against Vega-Lite's schema: the tests do that
        yield from scaling_charts(findings.points, looks)
        yield from breakdown_charts(findings.losses, looks)
        yield from learning_charts(findings.learning, looks)
        yield from cost_charts(findings.decisions, looks)
        yield from prediction_charts(findings, looks)
        yield from steadiness_charts(findings, looks)
