"""Figures of a study for print: every chart of the page, as .pdf, .svg and .png in figures/."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from analysis.report.charts.looks import looks_of
from analysis.report.charts.names import relative_to
from analysis.report.charts.study import charts_of
from analysis.report.palette import LOOKS
from analysis.report.print.drawing import FORMATS, figure_spec, rendered
from analysis.report.print.each_series import each_series
from analysis.report.print.paper import Paper
from analysis.report.series_names import common_words, measured_series
from analysis.tables.point import Point
from analysis.tables.series import series_in_order

if TYPE_CHECKING:
    from analysis.report.findings import Findings

MOST_OF_A_CHOICE = 8  # figures of a chart that shows one series or point at a time
SYMBOL = 5  # width of the axis labels and a legend symbol, in font sizes
PAPER = Paper()


def figures_of(findings: Findings, paper: Paper = PAPER) -> dict[str, bytes]:
    """Return every figure in every format, by file name."""
    return {f"figures/{name}": content for name, content in drawn(findings, FORMATS, paper).items()}


def drawn(findings: Findings, kinds: Sequence[str], paper: Paper = PAPER) -> dict[str, bytes]:
    """Return the figures in these formats (of FORMATS), by file name."""
    return {
        f"{name}.{kind}": rendered(spec, kind, paper.width_mm)
        for name, spec in figure_specs(findings, paper).items()
        for kind in kinds
    }


def figure_specs(findings: Findings, paper: Paper = PAPER) -> dict[str, dict[str, Any]]:
    """Return the Vega-Lite spec of each figure, by name. A chart with a control gives several: `waterfall`,
    `waterfall_2`, …"""
    series = series_in_order(findings.points)
    common = common_words(measured_series(findings.points)) if series else ""
    looks = looks_of(findings.points)
    bases = {one.key: relative_to(one.points) for one in series}
    names = dict(looks.names)
    for one in series[: len(LOOKS)]:
        base = [bases[one.key]] if len(set(bases.values())) > 1 else []
        words = "; ".join((names[one.key], *base, *marks_texts(one.points)))
        names[one.key] = "\n".join(paper.wrapped(words, beside=SYMBOL))
    looks = dataclasses.replace(looks, names=names, domain=list(dict.fromkeys(names.values())), letters=paper.letters())
    found = {}
    for chart in charts_of(findings, looks):
        name = chart.name.replace("-", "_")
        for number in range(min(len(chart.heads), MOST_OF_A_CHOICE)):
            found[name if number == 0 else f"{name}_{number + 1}"] = figure_spec(chart, paper, number, common)
    return found | each_series(findings.points, findings.losses, looks.own, paper)


def marks_texts(points: Sequence[Point]) -> list[str]:
    """Return the warnings of a series; if only some points have one, their numbers of GPUs follow."""
    at: dict[str, list[int]] = {}
    for point in points:
        for mark in point.marks:
            at.setdefault(mark, []).append(point.gpus)
    return [
        mark if len(counts) == len(points) else f"{mark} at {', '.join(map(str, sorted(set(counts))))}"
        for mark, counts in at.items()
    ]
