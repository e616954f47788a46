"""From 100 % efficiency to the measured one: what each part of a step took away. Every bar has its name and figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from analysis.base.text import gpus_text, percent
from analysis.measures.losses import Loss
from analysis.report.losses import LOSS_NAMES, share_text
from analysis.report.palette import IDEAL, PARTS
from analysis.report.print.drawing import LINE_HEIGHT, SINGLE, wrapped
from analysis.report.sentences import baseline
from analysis.tables.warnings import OVERSUBSCRIBED, marks_of

BAR_HEIGHT, FOOT_HEIGHT = 0.165, 0.42  # inches
LEFT, BARS = 0.98, 1.38  # inches: for the names of the parts, and of the axes
TITLE_LENGTH = 240  # characters
NARROW_NAMES = {"compute and communication": "compute and comm.", "exposed communication": "exposed comm."}


def waterfall_figure(panels: Sequence[Loss]) -> Figure:
    """A panel for each, below one another. Bars of oversubscribed points are hollow. Under a `style`."""
    titles = [wrapped(_title(loss), SINGLE + 0.2, TITLE_LENGTH) for loss in panels]
    heads = [0.1 + LINE_HEIGHT * len(title) for title in titles]
    bars = [BAR_HEIGHT * (len(loss.shares) + 2) for loss in panels]
    height = sum(heads) + sum(bars) + FOOT_HEIGHT * len(panels)
    figure = Figure(figsize=(SINGLE, height))
    FigureCanvasAgg(figure)
    top = height
    for loss, title, head, bar in zip(panels, titles, heads, bars, strict=True):
        figure.text(0.05 / SINGLE, (top - 0.04) / height, "\n".join(title), va="top", fontsize=7.5, linespacing=1.15)
        top -= head
        axes = figure.add_axes((LEFT / SINGLE, (top - bar) / height, BARS / SINGLE, bar / height))
        _panel(axes, loss)
        top -= bar + FOOT_HEIGHT
    return figure


def _title(loss: Loss) -> str:
    point = loss.point
    on = f"{gpus_text(point['gpus'], point['device'])} relative to {baseline(point)}"
    return "; ".join(filter(None, (point["label"], point["detail"], on, *marks_of(point))))


def _panel(axes: Axes, loss: Loss) -> None:
    hollow = OVERSUBSCRIBED in marks_of(loss.point)
    parts = [LOSS_NAMES[part].replace(" together", "") for part in loss.shares]
    level = 100.0
    ends = [level]
    _bar(axes, 0, 0, level, IDEAL.colour, hollow)
    at: Any = {"xytext": (3, 0), "textcoords": "offset points", "va": "center", "fontsize": 7}
    axes.annotate("100 %", (100, 0), **at)
    for row, (part, share) in enumerate(loss.shares.items(), start=1):
        end = level - 100 * share.estimate
        _bar(axes, row, min(level, end), abs(end - level), PARTS[part].colour, hollow)
        if share.low is not None and share.high is not None:
            interval = level - 100 * share.high, level - 100 * share.low
            axes.hlines(row, *interval, color="black", linewidth=0.9, zorder=4)
            ends += interval
        axes.vlines(end, row, row + 1, color="#9CA3AF", linewidth=0.5, zorder=1)
        ends += (level, end)
        beside: Any = {"xycoords": ("axes fraction", "data"), "annotation_clip": False}
        axes.annotate(share_text(share), (1.04, row), **beside, va="center", fontsize=7)
        level = end
    last = len(loss.shares) + 1
    _bar(axes, last, 0, level, IDEAL.colour, hollow)
    axes.annotate(percent(level / 100), (level, last), **at)
    names = ["ideal", *(NARROW_NAMES.get(name, name) for name in parts), "measured"]
    axes.set_yticks(range(last + 1), names)
    axes.set_ylim(last + 0.6, -0.6)
    axes.set_xlim(min(0.0, *ends) * 1.05, max(ends) * 1.02)
    axes.set_xlabel(f"efficiency; 95 % intervals from {loss.basis}", fontsize=7)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g} %")


def _bar(axes: Axes, row: int, left: float, width: float, colour: str, hollow: bool) -> None:
    face = "white" if hollow else colour
    axes.barh(row, width, left=left, height=0.7, color=face, edgecolor=colour, linewidth=0.9, zorder=2)
