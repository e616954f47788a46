"""Test accuracy over the samples and over the seconds of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from analysis.base.text import gpus_text, percent, shortened
from analysis.measures.learning import Learning
from analysis.report.curves import CURVES, spots
from analysis.report.palette import IDEAL, LOOKS, UNNAMED, Look, is_hollow
from analysis.report.print.drawing import DASHED, IDEAL_LINE, SINGLE, Entry, new_figure, wrapped
from analysis.report.print.scaling_figures import MOST_HEAD_LINES, MOST_NAME, common_words, hollow_entry, short_name
from analysis.report.sentences import seeds_text
from analysis.tables.warnings import marks_of

AXES_HEIGHT = 1.75  # inches


def accuracy_figure(learning: Learning, name: str) -> Figure:
    """name: of CURVES. Points beyond the eighth are grey and not named; the legend says so. Under a `style`."""
    quantity, label = CURVES[name]
    points = [point for point in learning.points if any(len(curve) > 1 for curve in point["curves"])]
    common = common_words([[point] for point in points])
    head = [*wrapped(common, SINGLE)[:MOST_HEAD_LINES], "mean of a point's runs; shaded: their range"]
    figure, axes = new_figure(SINGLE, AXES_HEIGHT, _legend(points, common, learning.target), head)
    on_cpus = all(point["device"] == "cpu" for point in points)
    axes.set_xlabel(label.replace("GPUs", "CPU ranks") if on_cpus else label)
    axes.set_ylabel("test accuracy [%]")
    for i, point in reversed(list(enumerate(points))):
        _plot(axes, point, quantity, LOOKS[i] if i < len(LOOKS) else UNNAMED)
    if learning.target is not None:
        axes.axhline(100 * learning.target, **IDEAL_LINE)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.15g}"))
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    return figure


def _plot(axes: Axes, point: Mapping[str, Any], quantity: str, look: Look) -> None:
    named = look is not UNNAMED
    zorder = 3 if named else 2
    found = spots(point["curves"], quantity)
    xs = [spot.x for spot in found]
    if len(point["curves"]) > 1 and named:
        low, high = [100 * spot.low for spot in found], [100 * spot.high for spot in found]
        axes.fill_between(xs, low, high, color=look.colour, alpha=0.15, linewidth=0, zorder=zorder - 0.5)
    face = "white" if is_hollow(marks_of(point)) else look.colour
    accuracies = [100 * spot.accuracy for spot in found]
    width = 1.1 if named else 0.6
    axes.plot(xs, accuracies, color=look.colour, marker=look.marker, mfc=face, ms=3.2, linewidth=width, zorder=zorder)


def _legend(points: Sequence[Mapping[str, Any]], common: str, target: float | None) -> list[Entry]:
    entries: list[Entry] = []
    for look, point in zip(LOOKS, points, strict=False):
        face = "white" if is_hollow(marks_of(point)) else look.colour
        name = shortened(short_name(point) if common else point["label"], MOST_NAME)
        remarks = ", ".join(filter(None, (seeds_text(point), point["detail"], *marks_of(point))))
        lines = wrapped(f"{gpus_text(point['gpus'], point['device'])}: {name}; {remarks}", SINGLE)
        entries.append((Line2D([], [], color=look.colour, marker=look.marker, mfc=face), "\n".join(lines)))
    if len(points) > len(LOOKS):
        grey = Line2D([], [], color=UNNAMED.colour, marker=UNNAMED.marker)
        entries.append((grey, f"{len(points) - len(LOOKS)} further points, named in the table of the report"))
    if target is not None:
        dashed = Line2D([], [], color=IDEAL.colour, linestyle=DASHED, linewidth=0.9)
        entries.append((dashed, f"target: {percent(target, 1)}"))
    return entries + hollow_entry([mark for point in points for mark in marks_of(point)])
