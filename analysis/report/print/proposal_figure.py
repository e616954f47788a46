"""Speedup and efficiency of a proposal: what was measured, and the size that is asked for."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.base.text import unit
from analysis.report.palette import IDEAL, LOOKS, is_hollow
from analysis.report.print.drawing import DOUBLE, FOOT, IDEAL_LINE, LEFT, LINE_HEIGHT, RIGHT, Entry, place_legend
from analysis.report.print.request import Request, Size
from analysis.report.print.scaling_figures import hollow_entry, scale_counts
from analysis.report.sentences import baseline
from analysis.stats.intervals import Interval
from analysis.tables.warnings import marks_of

AXES_HEIGHT, GUTTER = 1.9, 0.6  # inches
LOOK, ASKED = LOOKS[0], LOOKS[1]


def proposal_figure(request: Request) -> Figure:
    """Two axes side by side, as wide as two columns. Under a `style`."""
    entries = _legend(request)
    legend = sum(text.count("\n") + 1 for _, text in entries) * LINE_HEIGHT + 0.05
    height = 0.1 + AXES_HEIGHT + FOOT + legend
    figure = Figure(figsize=(DOUBLE, height))
    FigureCanvasAgg(figure)
    wide = (DOUBLE - LEFT - RIGHT - GUTTER) / 2
    for number, quantity in enumerate(("speedup", "efficiency")):
        left = LEFT + number * (wide + GUTTER)
        rectangle = (left / DOUBLE, (FOOT + legend) / height, wide / DOUBLE, AXES_HEIGHT / height)
        _draw(figure.add_axes(rectangle), request, quantity)
    place_legend(figure, entries)
    return figure


def _draw(axes: Axes, request: Request, quantity: str) -> None:
    percent = quantity == "efficiency"
    scale = 100.0 if percent else 1.0
    sizes = request.sizes
    counts = sorted({size.gpus for size in sizes})
    base = request.base["gpus"]
    logarithmic = len(counts) > 1 and counts[-1] > 16
    scale_counts(axes, counts, logarithmic, both=not percent)
    if percent:
        axes.axhline(100, **IDEAL_LINE)
    else:
        axes.plot([base, counts[-1]], [1, counts[-1] / base], **IDEAL_LINE)
    measured = [size for size in sizes if size.row is not None]
    xs = [size.gpus for size in measured]
    axes.plot(xs, [_of(size, quantity).estimate * scale for size in measured], color=LOOK.colour, zorder=3)
    if request.asked.row is None:  # from the nearest measured size
        near = min(measured, key=lambda size: abs(size.gpus - request.asked.gpus))
        ends = sorted((near, request.asked), key=lambda size: size.gpus)
        heights = [_of(size, quantity).estimate * scale for size in ends]
        axes.plot([size.gpus for size in ends], heights, color=ASKED.colour, linestyle=":", linewidth=0.9, zorder=2.5)
    for size in sizes:
        _point(axes, size, _of(size, quantity), scale, asked=size is request.asked)
    axes.set_xlabel(unit(request.source.device))
    axes.set_ylabel("efficiency [%]" if percent else "speedup")
    shown = [scale * (1.0 if percent else size.gpus / base) for size in sizes]
    shown += [scale * _of(size, quantity).estimate for size in sizes]
    if percent:
        axes.set_ylim(0, max(110.0, 1.1 * max(shown)))
    else:
        bottom, top = axes.get_ylim()
        lowest = max(bottom, min(shown) / 1.5 if logarithmic else 0.0)
        axes.set_ylim(lowest, min(top, 1.4 * max(shown)))


def _point(axes: Axes, size: Size, value: Interval, scale: float, asked: bool) -> None:
    colour, marker = (ASKED.colour, "D") if asked else (LOOK.colour, LOOK.marker)
    hollow = size.row is None or is_hollow(marks_of(size.row))
    if value.low is not None and value.high is not None:
        style = "--" if size.row is None else "-"
        axes.vlines(
            size.gpus, value.low * scale, value.high * scale, color=colour, linewidth=1.1, linestyle=style, zorder=3
        )
    face = "white" if hollow else colour
    axes.plot([size.gpus], [value.estimate * scale], marker=marker, color=colour, mfc=face, zorder=4)


def _of(size: Size, quantity: str) -> Interval:
    return size.speedup if quantity == "speedup" else size.efficiency


def _legend(request: Request) -> list[Entry]:
    row = request.rows[-1]
    measured: Any = {"color": LOOK.colour, "marker": LOOK.marker}
    face = "white" if all(is_hollow(marks_of(row)) for row in request.rows) else LOOK.colour
    entries: list[Entry] = [
        (Line2D([], [], **measured, mfc=face), f"measured, relative to {baseline(row)}; bar: 95 % interval"),
        (Line2D([], [], color=IDEAL.colour, linestyle=IDEAL_LINE["linestyle"], linewidth=0.9), "ideal"),
    ]
    predicted = request.asked.row is None
    what = "asked for, predicted; dashed bar: 90 % interval" if predicted else "asked for"
    hollow = predicted or is_hollow(marks_of(request.asked.row or {"marks": None}))
    look: Any = {"color": ASKED.colour, "marker": "D", "linestyle": "--" if predicted else "none"}
    entries.append((Line2D([], [], **look, mfc="white" if hollow else ASKED.colour), what))
    return entries + hollow_entry([mark for row in request.rows for mark in marks_of(row)])
