"""Every measured block of every run, relative to its point's median."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.base.text import unit
from analysis.report.block_times import Strip, deviations, fitting
from analysis.report.palette import IDEAL, LOOKS, UNNAMED
from analysis.report.print.drawing import DOUBLE, Entry, new_figure, wrapped
from analysis.stats.stability import outliers

AXES_HEIGHT = 1.7  # inches
LEAST_REACH, MOST_REACH = 5.0, 60.0  # per cent from the median: of the axis
OUTLIER_COLOUR = "#B91C1C"
SLOT = 0.84  # of the place of a run, the rest is space between two


def block_figure(every: Sequence[Strip]) -> Figure:
    """Where not all runs have room, the points that drifted or have most blocks outside Tukey's fences are drawn; the
    figure says how many there are. Under a `style`."""
    strips = fitting(every)
    drawn, all_runs = (sum(len(strip.runs) for strip in some) for some in (strips, every))
    colours = _colours(strips)
    which = "all blocks of all runs" if drawn == all_runs else f"all blocks of {drawn:,} of {all_runs:,} runs"
    head = f"step time relative to the point's median; {which}, in a run from left to right in the order of time"
    figure, axes = new_figure(DOUBLE, AXES_HEIGHT, _legend(strips, colours), [head])
    by_strip = [deviations(strip) for strip in strips]
    values = [value for strip in by_strip for run in strip for value in run]
    reach = min(MOST_REACH, max(LEAST_REACH, 1.1 * max(map(abs, values))))
    ticks = []
    place = 0
    for strip, runs in zip(strips, by_strip, strict=True):
        if place:
            axes.axvline(place, color="#D1D5DB", linewidth=0.6, zorder=1)
        _plot(axes, place, runs, reach, colours[strip.point["series"]])
        ticks.append((place + len(runs) / 2, str(strip.point["gpus"])))
        place += len(runs)
    axes.axhline(0, color=IDEAL.colour, linewidth=0.6, zorder=1.5)
    axes.set_xlim(0, place)
    axes.set_ylim(-min(reach, max(LEAST_REACH, -1.1 * min(values))), reach)
    axes.grid(axis="x", visible=False)
    axes.set_xticks([x for x, _ in ticks], [label for _, label in ticks])
    axes.tick_params(axis="x", length=0)
    device = "cpu" if all(strip.point["device"] == "cpu" for strip in strips) else None
    axes.set_xlabel(f"{unit(device)} of each point")
    axes.set_ylabel("from the median [%]")
    return figure


def _plot(axes: Axes, place: int, runs: Sequence[Sequence[float]], reach: float, colour: str) -> None:
    """The runs of a point, each in a place of its own, the first one at `place`."""
    dots: list[tuple[float, float]] = []
    rings: list[tuple[float, float]] = []
    beyond: list[tuple[float, float]] = []
    for number, values in enumerate(runs):
        left, step = place + number + (1 - SLOT) / 2, SLOT / len(values)
        far = set(outliers(values))
        for i, value in enumerate(values):
            at = (left + step * (i + 0.5), value)
            if abs(value) > reach:  # in the picture all the same
                beyond.append((at[0], math.copysign(reach, value)))
                continue
            dots.append(at)
            if i in far:
                rings.append(at)
    rows: list[tuple[list[tuple[float, float]], dict[str, Any]]] = [
        (dots, {"marker": ".", "color": colour, "markersize": 2.4}),
        (rings, {"marker": "o", "mfc": "none", "mec": OUTLIER_COLOUR, "mew": 0.6, "markersize": 3.6}),
        ([(x, y) for x, y in beyond if y > 0], {"marker": "^", "color": OUTLIER_COLOUR, "markersize": 3}),
        ([(x, y) for x, y in beyond if y < 0], {"marker": "v", "color": OUTLIER_COLOUR, "markersize": 3}),
    ]
    for marks, look in rows:
        if marks:
            xs, ys = zip(*marks, strict=True)
            axes.plot(xs, ys, linestyle="none", zorder=3, clip_on=False, **look)


def _colours(strips: Sequence[Strip]) -> dict[str, str]:
    series = list(dict.fromkeys(strip.point["series"] for strip in strips))
    return {key: (LOOKS[i] if i < len(LOOKS) else UNNAMED).colour for i, key in enumerate(series)}


def _legend(strips: Sequence[Strip], colours: Mapping[str, str]) -> list[Entry]:
    entries: list[Entry] = []
    first = {strip.point["series"]: strip.point for strip in reversed(strips)}
    for key, colour in list(colours.items())[: len(LOOKS)]:
        name = ", ".join(filter(None, (first[key]["label"], first[key]["precision"], first[key]["detail"])))
        dot = Line2D([], [], color=colour, marker=".", linestyle="none")
        entries.append((dot, "\n".join(wrapped(name, DOUBLE))))
    if len(colours) > len(LOOKS):
        grey = Line2D([], [], color=UNNAMED.colour, marker=".", linestyle="none")
        entries.append((grey, f"{len(colours) - len(LOOKS)} further series"))
    ring = Line2D([], [], marker="o", mfc="none", mec=OUTLIER_COLOUR, linestyle="none", markersize=3.6)
    entries.append((ring, "outside Tukey's fences of its run; a triangle: beyond the axis. All of them count"))
    return entries
