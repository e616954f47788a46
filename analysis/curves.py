"""Test accuracy over the samples and over the seconds of training, as SVG and PNG."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.figures import (
    AXES_HEIGHT,
    IDEAL_COLOUR,
    LABEL_LENGTH,
    LABEL_WIDTH,
    LINE_HEIGHT,
    LOOKS,
    STYLE,
    UNNAMED_COLOUR,
    WIDTH,
    place_legend,
    rendered,
)
from analysis.points import OVERSUBSCRIBED
from analysis.sentences import marks_of, seeds_text
from analysis.text import gpus_text, percent, printable, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from analysis.learning import Learning

# The quantity on the x axis, and its label.
CURVES = {
    "accuracy_by_samples": ("samples", "training samples, all GPUs together"),
    "accuracy_by_seconds": ("train_seconds", "seconds of training, without evaluations"),
}


class Spot(NamedTuple):
    """One evaluation of a point: the means over its runs, and the smallest and the largest accuracy."""

    x: float
    accuracy: float
    low: float
    high: float


def draw_curves(learning: Learning) -> dict[str, bytes]:
    """Each of CURVES as .svg and .png, by file name; nothing where no run was evaluated more than once.

    Points beyond the eighth are drawn in grey and not named; the legend says so.
    """
    if not learning.has_curves:
        return {}
    points = [point for point in learning.points if any(len(curve) > 1 for curve in point["curves"])]
    files = {}
    for name, (quantity, label) in CURVES.items():
        with mpl.rc_context({**STYLE, "svg.hashsalt": name}), warnings.catch_warnings():
            # A name in a script that the font lacks is drawn as boxes; a warning would tell the user nothing more.
            warnings.filterwarnings("ignore", message="Glyph .* missing")
            figure = _draw(points, quantity, label, learning.target)
            for kind in ("svg", "png"):
                files[f"{name}.{kind}"] = rendered(figure, kind)
    return files


def spots(curves: Sequence[Sequence[Mapping[str, Any]]], quantity: str) -> list[Spot]:
    """The evaluations that all runs of a point have, after equal numbers of samples; those whose x is known."""
    found = []
    for samples in sorted({row["samples"] for curve in curves for row in curve}):
        rows = [row for curve in curves for row in curve if row["samples"] == samples]
        xs = [row[quantity] for row in rows if row[quantity] is not None]
        if len(rows) == len(xs) == len(curves):
            accuracies = [row["accuracy"] for row in rows]
            found.append(Spot(fmean(xs), fmean(accuracies), min(accuracies), max(accuracies)))
    return found


def _draw(points: Sequence[Mapping[str, Any]], quantity: str, label: str, target: float | None) -> Figure:
    legend = _legend(points, target)
    legend_height = sum(text.count("\n") + 1 for _, text in legend) * LINE_HEIGHT + 0.1
    height = AXES_HEIGHT + legend_height
    figure = Figure(figsize=(WIDTH, height), facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.125, (legend_height + 0.55) / height, 0.85, (AXES_HEIGHT - 1.1) / height))
    axes.set_title("Test accuracy", loc="left", fontsize=10.5, weight="bold", pad=18)
    at: dict[str, Any] = {"xy": (0, 1), "xycoords": "axes fraction", "textcoords": "offset points"}
    axes.annotate("mean of a point's runs; shaded: their range", xytext=(0, 6), **at, fontsize=9, color=IDEAL_COLOUR)
    axes.set_xlabel(label)
    axes.set_ylabel("test accuracy [%]")
    for i, point in reversed(list(enumerate(points))):
        colour, marker = LOOKS[i] if i < len(LOOKS) else (UNNAMED_COLOUR, ".")
        _plot(axes, point, quantity, colour, marker, 3 if i < len(LOOKS) else 2)
    if target is not None:
        axes.axhline(100 * target, color=IDEAL_COLOUR, linestyle=(0, (5, 3)), linewidth=1.2, zorder=1.5)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    place_legend(figure, legend, height)
    return figure


def _plot(axes: Axes, point: Mapping[str, Any], quantity: str, colour: str, marker: str, zorder: float) -> None:
    found = spots(point["curves"], quantity)
    xs = [spot.x for spot in found]
    if len(point["curves"]) > 1 and zorder > 2:
        low, high = [100 * spot.low for spot in found], [100 * spot.high for spot in found]
        axes.fill_between(xs, low, high, color=colour, alpha=0.15, linewidth=0, zorder=zorder - 0.5)
    # Hollow: the ranks of this point shared cores or GPUs.
    face = "white" if OVERSUBSCRIBED in marks_of(point) else colour
    accuracies = [100 * spot.accuracy for spot in found]
    width = 1.5 if zorder > 2 else 0.8
    axes.plot(xs, accuracies, color=colour, marker=marker, mfc=face, ms=4.5, linewidth=width, zorder=zorder)


def _legend(points: Sequence[Mapping[str, Any]], target: float | None) -> list[tuple[Line2D, str]]:
    entries = []
    for (colour, marker), point in zip(LOOKS, points, strict=False):
        face = "white" if OVERSUBSCRIBED in marks_of(point) else colour
        name = f"{gpus_text(point['gpus'], point['device'])}: {point['label']}"
        remarks = ", ".join(filter(None, (seeds_text(point), point["detail"], *marks_of(point))))
        lines = [
            line
            for text in (name, remarks)
            for line in textwrap.wrap(shortened(printable(text), LABEL_LENGTH), LABEL_WIDTH)
        ]
        entries.append((Line2D([], [], color=colour, marker=marker, mfc=face, ms=6), "\n".join(lines)))
    if len(points) > len(LOOKS):
        grey = Line2D([], [], color=UNNAMED_COLOUR, marker=".", ms=6)
        entries.append((grey, f"{len(points) - len(LOOKS)} further points, named in the table of the report"))
    if target is not None:
        dashed = Line2D([], [], color=IDEAL_COLOUR, linestyle=(0, (5, 3)), linewidth=1.2)
        entries.append((dashed, f"target: {percent(target, 1)}"))
    if any(OVERSUBSCRIBED in marks_of(point) for point in points):
        hollow = Line2D([], [], color="none", marker="o", mec=IDEAL_COLOUR, mfc="white", ms=6)
        entries.append((hollow, "hollow: oversubscribed, its seconds are not a scaling result"))
    return entries
