"""What the figures for print have in common: style, widths, the legend below the axes, the bytes of each format.

Colours and markers are those of the page (analysis/report/palette.py). Nothing but this package draws with matplotlib.
"""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.base.text import printable, shortened
from analysis.report.palette import IDEAL

STYLE = Path(__file__).with_name("paper.mplstyle")
SINGLE, DOUBLE = 3.35, 6.9  # inches: 85 and 175 mm, of one column and of two
LINE_HEIGHT = 0.125  # inches, of a legend's line
LEFT, RIGHT, FOOT = 0.42, 0.1, 0.4  # inches beside and below the axes
LABEL_LENGTH = 240  # characters of a whole label
DASHED = (0, (5, 3))
IDEAL_LINE: Any = {"color": IDEAL.colour, "linestyle": DASHED, "linewidth": 0.9, "zorder": 1.5}
FORMATS = ("pdf", "svg", "png")

Entry = tuple[Line2D, str]


@contextmanager
def style(name: str) -> Iterator[None]:
    """matplotlib's own defaults and the style file, whatever the user's matplotlibrc says; both while drawing and while
    rendering."""
    with mpl.rc_context(fname=STYLE), warnings.catch_warnings():
        mpl.rcParams["svg.hashsalt"] = name
        # A name in a script that the font lacks is drawn as boxes; a warning would tell the user nothing more.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield


def new_figure(
    width: float, axes_height: float, entries: Sequence[Entry], head: Sequence[str] = ()
) -> tuple[Figure, Axes]:
    """A figure with axes of this height, lines of grey text above them and the legend below."""
    legend = sum(text.count("\n") + 1 for _, text in entries) * LINE_HEIGHT + 0.05 if entries else 0.0
    top = 0.08 + LINE_HEIGHT * len(head)
    height = top + axes_height + FOOT + legend
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    rectangle = (LEFT / width, (FOOT + legend) / height, (width - LEFT - RIGHT) / width, axes_height / height)
    axes = figure.add_axes(rectangle)
    for number, line in enumerate(head):
        y = 1 - (0.04 + LINE_HEIGHT * number) / height
        figure.text(LEFT / width, y, line, va="top", fontsize=7, color=IDEAL.colour)
    if entries:
        place_legend(figure, entries)
    return figure, axes


def place_legend(figure: Figure, entries: Sequence[Entry]) -> None:
    # Placeholders first: matplotlib leaves out labels that begin with '_', and a name may begin so.
    width, height = figure.get_size_inches()
    legend = figure.legend(
        [handle for handle, _ in entries],
        ["-"] * len(entries),
        loc="lower left",
        bbox_to_anchor=(0.06 / width, 0.03 / height),
        labelspacing=0.2,
        borderpad=0,
        borderaxespad=0,
        handlelength=2.0,
        handletextpad=0.6,
    )
    for text, (_, label) in zip(legend.get_texts(), entries, strict=True):
        text.set_text(label)
        text.set_linespacing(1.0)


def characters(width: float) -> int:
    """How many of a legend's letters a line of a figure this wide holds."""
    return round(23 * (width - 0.4))


def wrapped(text: str, width: float, length: int = LABEL_LENGTH) -> list[str]:
    """A name from a study as lines of a legend in a figure of this width in inches; nothing of an empty one."""
    return textwrap.wrap(shortened(printable(text), length), characters(width))


def rendered(figure: Figure, kind: str) -> bytes:
    """Under the `style` that it was drawn under. Without a date: equal studies give equal files."""
    buffer = io.BytesIO()
    without = {"svg": ("Date", "Creator"), "pdf": ("CreationDate", "Creator", "Producer"), "png": ("Software",)}[kind]
    figure.savefig(buffer, format=kind, metadata=dict.fromkeys(without))
    return buffer.getvalue()
