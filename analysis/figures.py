"""Speedup and efficiency over the number of GPUs, as SVG and PNG.

Colours are those of Okabe and Ito (2008), told apart by the colour-blind; each series has a marker of its own too.
"""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from analysis.points import OVERSUBSCRIBED, SINGLE_RUN
from analysis.read import records
from analysis.sentences import baseline, marks_of, unit
from analysis.series import PLAIN, without_strategy
from analysis.text import printable, shortened

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

LOOKS = [
    *(("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D")),
    *(("#E69F00", "v"), ("#56B4E9", "P"), ("#000000", "X"), ("#7A4E9E", "*")),
]
UNNAMED_COLOUR, IDEAL_COLOUR = "#B4B9C0", "#6B7280"

WIDTH, AXES_HEIGHT, LINE_HEIGHT = 4.7, 3.4, 0.165  # inches
LABEL_WIDTH, LABEL_LENGTH = 70, 150  # characters of a legend's line, and of a whole label

STYLE: Any = {
    "font.size": 9.5,
    "svg.fonttype": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9CA3AF",
    "axes.grid": True,
    "grid.color": "#E5E7EB",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "text.parse_math": False,  # a '$' in a name is a '$'
}

Series = Sequence[Mapping[str, Any]]


def draw_figures(points: pd.DataFrame) -> dict[str, bytes]:
    """`speedup` and `efficiency`, each as .svg and .png: the contents by file name.

    Series beyond the eighth are drawn in grey and not named: those with the fewest measured counts. The legend says so.
    """
    series = _measured_series(points)
    files = {}
    for quantity in ("speedup", "efficiency"):
        with mpl.rc_context({**STYLE, "svg.hashsalt": quantity}), warnings.catch_warnings():
            # A name in a script that the font lacks is drawn as boxes; a warning would tell the user nothing more.
            warnings.filterwarnings("ignore", message="Glyph .* missing")
            figure = _draw(series, quantity)
            for kind in ("svg", "png"):
                files[f"{quantity}.{kind}"] = rendered(figure, kind)
    return files


def unnamed_series(points: pd.DataFrame) -> int:
    """How many of the series are drawn in grey, without a name."""
    return max(0, len(_measured_series(points)) - len(LOOKS))


def _measured_series(points: pd.DataFrame) -> list[Series]:
    """The series that have figures, those to be named first. Without a framework alone that others are relative to: by
    definition it has a speedup of 1 on one GPU."""
    measured = [row for row in records(points) if row["samples_per_second"] is not None]
    every: list[Series] = [list(group) for _, group in groupby(measured, key=lambda row: row["series"])]
    wrapped = {without_strategy(group[0]["series"]) for group in every if group[0]["strategy"] != PLAIN}
    series = [g for g in every if g[0]["strategy"] != PLAIN or without_strategy(g[0]["series"]) not in wrapped]
    series.sort(key=lambda group: -len({row["gpus"] for row in group}))
    return series


def _draw(series: list[Series], quantity: str) -> Figure:
    legend, n_lines = _legend(series)
    legend_height = n_lines * LINE_HEIGHT + 0.1 if legend else 0
    height = AXES_HEIGHT + legend_height
    figure = Figure(figsize=(WIDTH, height), facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.125, (legend_height + 0.55) / height, 0.85, (AXES_HEIGHT - 1.1) / height))
    percent = quantity == "efficiency"
    _frame(axes, series, percent)
    for i, group in reversed(list(enumerate(series))):
        colour, marker = LOOKS[i] if i < len(LOOKS) else (UNNAMED_COLOUR, ".")
        _plot(axes, group, quantity, 100.0 if percent else 1.0, colour, marker, 3 if i < len(LOOKS) else 2)
    if not series:
        axes.text(0.5, 0.5, "no completed run yet", transform=axes.transAxes, ha="center", color=IDEAL_COLOUR)
    if percent:
        axes.set_ylim(0, max(110.0, axes.get_ylim()[1]))
    if legend:
        place_legend(figure, legend, height)
    return figure


def _frame(axes: Axes, series: list[Series], percent: bool) -> None:
    """Axes, title and the ideal line: one per baseline, where series are relative to different counts."""
    rows = [row for group in series for row in group]
    devices = {row["device"] for row in rows}
    what = unit(next(iter(devices))) if len(devices) == 1 else "GPUs or CPU ranks" if devices else "GPUs"
    counts = sorted({row[name] for row in rows for name in ("gpus", "relative_to_gpus")})
    reach = {n: max(row["gpus"] for row in rows if row["relative_to_gpus"] == n) for n in _bases(rows)}
    bases = {baseline(row) for row in rows}
    base_text = bases.pop() if len(bases) == 1 else "what the legend says of each series"
    title = "Parallel efficiency" if percent else "Speedup"
    axes.set_title(title, loc="left", fontsize=10.5, weight="bold", pad=18)
    if rows:
        at: dict[str, Any] = {"xy": (0, 1), "xycoords": "axes fraction", "textcoords": "offset points"}
        axes.annotate(f"relative to {base_text}", xytext=(0, 6), **at, fontsize=9, color=IDEAL_COLOUR)
    axes.set_xlabel(what)
    axes.set_ylabel("efficiency [%]" if percent else "speedup")
    if not rows:
        axes.set_xticks([])
        axes.set_yticks([])
        return
    _scale(axes, counts, logarithmic=len(counts) > 1 and counts[-1] > 16, both=not percent)
    ideal: dict[str, Any] = {"color": IDEAL_COLOUR, "linestyle": (0, (5, 3)), "linewidth": 1.2, "zorder": 1.5}
    if percent:
        axes.axhline(100, **ideal)
    elif len(counts) == 1:
        axes.axhline(1, **ideal)
    else:
        for base, last in reach.items():
            axes.plot([base, last], [1, last / base], **ideal)


def _bases(rows: Series) -> list[int]:
    return sorted({row["relative_to_gpus"] for row in rows})


def _scale(axes: Axes, counts: list[int], logarithmic: bool, both: bool) -> None:
    if logarithmic:
        axes.set_xscale("log", base=2)
        if both:
            axes.set_yscale("log", base=2)
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    shown: list[int] = []
    for n in counts:  # labels that would touch are left out
        wide = n >= shown[-1] * 1.3 if shown and logarithmic else not shown or n - shown[-1] >= counts[-1] / 18
        if not shown or wide:
            shown.append(n)
    axes.xaxis.set_major_locator(FixedLocator(shown))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    if not logarithmic:
        margin = max(0.5, counts[-1] * 0.04)
        axes.set_xlim(min(counts[0], 1) - margin if counts[0] <= 2 else counts[0] - margin, counts[-1] + margin)


def _plot(axes: Axes, group: Series, quantity: str, scale: float, colour: str, marker: str, zorder: float) -> None:
    first_of_count = {row["gpus"]: row for row in reversed(group)}
    line = sorted(first_of_count)
    heights = [first_of_count[n][quantity] * scale for n in line]
    axes.plot(line, heights, color=colour, linewidth=1.5 if zorder > 2 else 0.8, zorder=zorder)
    for row in group:
        marks = marks_of(row)
        low, high = row[f"{quantity}_low"], row[f"{quantity}_high"]
        if low is not None and zorder > 2:
            style = ":" if SINGLE_RUN in marks else "-"
            axes.vlines(row["gpus"], low * scale, high * scale, color=colour, linewidth=1.4, linestyle=style)
        # Hollow: the ranks of this point shared cores or GPUs.
        face = "white" if OVERSUBSCRIBED in marks else colour
        at = ([row["gpus"]], [row[quantity] * scale])
        axes.plot(*at, marker=marker, color=colour, mfc=face, markersize=6.5, mew=1.3, zorder=zorder + 1)


def _legend(series: list[Series]) -> tuple[list[tuple[Line2D, str]], int]:
    """Handles with their texts, and how many lines they take."""
    if not series:
        return [], 0
    entries = []
    for (colour, marker), group in zip(LOOKS, series, strict=False):
        face = "white" if all(OVERSUBSCRIBED in marks_of(row) for row in group) else colour
        remarks = "; ".join([*_circumstances(group, series), *_marks_texts(group)])
        label = [
            *textwrap.wrap(shortened(printable(group[0]["label"]), LABEL_LENGTH), LABEL_WIDTH),
            *textwrap.wrap(shortened(printable(remarks), LABEL_LENGTH), LABEL_WIDTH),
        ]
        entries.append((Line2D([], [], color=colour, marker=marker, mfc=face, ms=6), "\n".join(label)))
    if len(series) > len(LOOKS):
        grey = Line2D([], [], color=UNNAMED_COLOUR, marker=".", ms=6)
        entries.append((grey, f"{len(series) - len(LOOKS)} further series, named in the table of the report"))
    entries.append((Line2D([], [], color=IDEAL_COLOUR, linestyle=(0, (5, 3)), linewidth=1.2), "ideal"))
    every = {mark for group in series for row in group for mark in marks_of(row)}
    if OVERSUBSCRIBED in every:
        hollow = Line2D([], [], color="none", marker="o", mec=IDEAL_COLOUR, mfc="white", ms=6)
        entries.append((hollow, "hollow: oversubscribed, not a scaling result"))
    if SINGLE_RUN in every:
        dotted = Line2D([], [], color=IDEAL_COLOUR, linestyle=":", linewidth=1.4)
        entries.append((dotted, "dotted bar: range of a single run's blocks; solid: of repeated runs"))
    return entries, sum(text.count("\n") + 1 for _, text in entries)


def _circumstances(group: Series, series: list[Series]) -> list[str]:
    """Precision, cluster, device and baseline where the series differ in them, and what else tells equal labels
    apart."""
    parts = [group[0][name] for name in ("precision", "cluster", "device") if len({g[0][name] for g in series}) > 1]
    if len({baseline(g[0]) for g in series}) > 1:
        parts.append(f"relative to {baseline(group[0])}")
    if group[0]["detail"]:
        parts.append(group[0]["detail"])
    return [", ".join(parts)] if parts else []


def _marks_texts(group: Series) -> list[str]:
    """The marks of a series' points; where not all have one, with the counts that do."""
    at: dict[str, list[int]] = {}
    for row in group:
        for mark in marks_of(row):
            at.setdefault(mark, []).append(row["gpus"])
    return [
        mark if len(counts) == len(group) else f"{mark} at {', '.join(map(str, sorted(set(counts))))}"
        for mark, counts in at.items()
    ]


def place_legend(figure: Figure, entries: list[tuple[Line2D, str]], height: float) -> None:
    # Placeholders first: matplotlib leaves out labels that begin with '_', and a name may begin so.
    legend = figure.legend(
        [handle for handle, _ in entries],
        ["-"] * len(entries),
        loc="lower left",
        bbox_to_anchor=(0.01, 0.04 / height),
        frameon=False,
        fontsize=8,
        labelspacing=0.25,
        borderpad=0,
        handlelength=2.2,
    )
    for text, (_, label) in zip(legend.get_texts(), entries, strict=True):
        text.set_text(label)


def rendered(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    # Without a date, equal studies give equal files.
    metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    figure.savefig(buffer, format=kind, dpi=160, metadata=metadata, facecolor="white")
    return buffer.getvalue()
