"""Figures of a study for print: every chart of the page, as .pdf, .svg and .png in figures/."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from altair.utils.schemapi import debug_mode

from analysis.report.charts.looks import Looks, looks_of
from analysis.report.charts.names import relative_to
from analysis.report.charts.study import charts_of
from analysis.report.print.drawing import FORMATS, begin, end_processes, rendered
from analysis.report.print.each_series import each_series
from analysis.report.print.figure_spec import figure_spec
from analysis.report.print.paper import Paper
from analysis.report.series_names import common_words, measured_series
from analysis.tables.point import Point
from analysis.tables.series import Series, series_in_order

if TYPE_CHECKING:
    from analysis.report.findings import Findings

MOST_OF_A_CHOICE = 8  # figures of a chart that shows one series or point at a time
BESIDE = 0.38  # of the letters of a line: the longest name in a legend beside the plot
SYMBOL = 5  # width of the axis labels and a legend symbol, in font sizes
PAPER = Paper()


def figures_of(findings: Findings, paper: Paper = PAPER) -> dict[str, bytes]:
    """Return every figure in every format, by file name."""
    found = {f"figures/{name}": content for name, content in drawn(findings, FORMATS, paper).items()}
    end_processes()
    return found


def drawn(findings: Findings, kinds: Sequence[str], paper: Paper = PAPER) -> dict[str, bytes]:
    """Return the figures in these formats (of FORMATS), by file name."""
    return {
        f"{name}.{kind}": content
        for name, spec in figure_specs(findings, paper).items()
        for kind, content in rendered(spec, kinds, paper.width_mm).items()
    }


@lru_cache(maxsize=2)  # for figures/ and report.pdf, whose papers may differ
def figure_specs(findings: Findings, paper: Paper = PAPER) -> dict[str, dict[str, Any]]:
    """Return the Vega-Lite spec of each figure, by name. A chart with a control gives several: `waterfall`,
    `waterfall_2`, … Each is rendered from now on, if processes for that have started (drawing.py)."""
    series = series_in_order(findings.points)
    looks = looks_of(findings.points)
    words, of_all = _legend(series, looks)
    common = "; ".join(filter(None, (common_words(measured_series(findings.points)) if series else "", *of_all)))
    is_narrow = all(len(text) <= BESIDE * paper.letters() for text in words.values())
    names = {key: text if is_narrow else "\n".join(paper.wrapped(text, beside=SYMBOL)) for key, text in words.items()}
    looks = dataclasses.replace(
        looks, names=names, domain=[names[key] for key in _by_name(looks)], letters=paper.letters()
    )
    found, many = {}, {}
    with debug_mode(False):  # as for the page's charts
        for name, spec in each_series(findings.points, findings.losses, looks.own, paper):
            begin(spec, paper.width_mm)
            many[name] = spec
    for chart in charts_of(findings, looks):
        name = chart.name.replace("-", "_")
        for number in range(min(len(chart.heads), MOST_OF_A_CHOICE)):
            spec = figure_spec(chart, paper, number, common, is_narrow and chart.legend_letters > 0)
            begin(spec, paper.width_mm)
            found[name if number == 0 else f"{name}_{number + 1}"] = spec
    return found | many


def _legend(series: Sequence[Series], looks: Looks) -> tuple[dict[str, str], list[str]]:
    """Return the words of each series for the legend, with its baseline and warnings where they differ between series,
    and the warnings that all share."""
    bases = {one.key: relative_to(one.points) for one in series}
    marks = {one.key: marks_texts(one.points) for one in series}
    of_all = [mark for mark in next(iter(marks.values()), []) if all(mark in marks[one.key] for one in series)]
    if len(series) == 1:
        of_all = []
    words = {}
    for key, name in looks.names.items():
        base = [bases[key]] if len(set(bases.values())) > 1 else []
        own = [mark for mark in marks[key] if mark not in of_all]
        words[key] = "; ".join((name, *base, *own)) if name == looks.own[key] else f"{name}, each in efficiency_each"
    return words, of_all


def _by_name(looks: Looks) -> list[str]:
    """Return a key of each name of the legend, in the order of the palette."""
    keys = {name: key for key, name in reversed(list(looks.names.items()))}
    return [keys[name] for name in looks.domain]


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
