"""The figures of a study: figures/ as .pdf, .svg and .png, and as .pgf where there is a LaTeX."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

from analysis.report.block_times import NAME as BLOCK_TIMES
from analysis.report.block_times import strips_of
from analysis.report.curves import CURVES
from analysis.report.print.accuracy_figures import accuracy_figure
from analysis.report.print.block_figure import block_figure
from analysis.report.print.drawing import FORMATS, rendered, style
from analysis.report.print.pgf import pgf_of, why_no_pgf
from analysis.report.print.scaling_figures import scaling_figure
from analysis.report.print.waterfall_figure import waterfall_figure
from analysis.report.waterfall import WATERFALL, waterfall_points

if TYPE_CHECKING:
    from analysis.report.findings import Findings

SCALING = ("speedup", "efficiency")


def figures_of(findings: Findings) -> dict[str, bytes]:
    """Each figure in each format, by the names of their files. Where .pgf cannot be written, the terminal says why."""
    kinds = [*FORMATS]
    if (why := why_no_pgf()) is None:
        kinds.append("pgf")
    else:
        print(f"figures/*.pgf are not written: {why}")
    return {f"figures/{name}": content for name, content in drawn(findings, kinds).items()}


def drawn(findings: Findings, kinds: Iterable[str], only: Iterable[str] | None = None) -> dict[str, bytes]:
    """By file name. kinds: of FORMATS, or "pgf". only: names of figures; None: all that there are. Each is drawn once,
    whatever the number of formats."""
    wanted = list(kinds)
    files = {}
    for name, draw in drawings(findings).items():
        if only is None or name in only:
            with style(name):
                figure = draw()
                for kind in wanted:
                    files[f"{name}.{kind}"] = pgf_of(figure) if kind == "pgf" else rendered(figure, kind)
    return files


def drawings(findings: Findings) -> Mapping[str, Callable[[], Figure]]:
    """What draws each figure of the study, under a `style`, by its name; without those that would be empty."""
    found: dict[str, Callable[[], Figure]] = {name: partial(scaling_figure, findings.rows, name) for name in SCALING}
    strips = strips_of(findings.study.runs, findings.points)
    if any(len(blocks) > 1 for strip in strips for blocks in strip.runs):
        found[BLOCK_TIMES] = partial(block_figure, strips)
    if findings.learning.has_curves:
        found |= {name: partial(accuracy_figure, findings.learning, name) for name in CURVES}
    if panels := waterfall_points(findings.losses):
        found[WATERFALL] = partial(waterfall_figure, panels)
    return found
