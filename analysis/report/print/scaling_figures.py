"""Speedup and efficiency over the number of GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from analysis.base.text import shortened, unit
from analysis.report.palette import IDEAL, LOOKS, UNNAMED, Look, hollow_note, is_hollow
from analysis.report.print.drawing import DASHED, IDEAL_LINE, SINGLE, Entry, new_figure, wrapped
from analysis.report.sentences import baseline
from analysis.tables.bases import ONE_RUN
from analysis.tables.series import series_in_order
from analysis.tables.warnings import OVERSUBSCRIBED, marks_of

AXES_HEIGHT = 1.75  # inches
MOST_HEAD_LINES = 2
MOST_NAME = 150  # characters of a series' name

Series = Sequence[Mapping[str, Any]]


def scaling_figure(rows: Series, quantity: str) -> Figure:
    """quantity: "speedup" or "efficiency". rows: of the table of points. Under a `style`.

    Series beyond the eighth are drawn in grey and not named: those with the fewest measured counts. The legend says so.
    """
    series = series_in_order(rows)
    common = common_words(series)
    percent = quantity == "efficiency"
    head = [*wrapped(common, SINGLE)[:MOST_HEAD_LINES], *([_relative(series)] if series else [])]
    figure, axes = new_figure(SINGLE, AXES_HEIGHT, _legend(series, common), head)
    _frame(axes, series, percent)
    for i, group in reversed(list(enumerate(series))):
        _plot(axes, group, quantity, 100.0 if percent else 1.0, LOOKS[i] if i < len(LOOKS) else UNNAMED)
    if not series:
        axes.text(0.5, 0.5, "no completed run yet", transform=axes.transAxes, ha="center", color=IDEAL.colour)
    if percent:
        axes.set_ylim(0, max(110.0, axes.get_ylim()[1]))
    _cut_bars(axes, series, quantity)
    return figure


def short_name(row: Mapping[str, Any]) -> str:
    return f"{row['framework']} {row['strategy']}"


def common_words(series: Sequence[Series]) -> str:
    """What follows framework and strategy in the labels, where that is the same in all."""
    rests = {group[0]["label"].removeprefix(short_name(group[0])) for group in series}
    rest = rests.pop() if len(rests) == 1 else ""
    return rest.removeprefix(", ") if rest.startswith(", ") else ""


def _relative(series: Sequence[Series]) -> str:
    bases = {baseline(row) for group in series for row in group}
    return f"relative to {bases.pop() if len(bases) == 1 else 'what the legend says of each series'}"


def _frame(axes: Axes, series: Sequence[Series], percent: bool) -> None:
    """Axes and the ideal line: one per baseline, where series are relative to different counts."""
    rows = [row for group in series for row in group]
    devices = {row["device"] for row in rows}
    what = unit(next(iter(devices))) if len(devices) == 1 else "GPUs or CPU ranks" if devices else "GPUs"
    counts = sorted({row[name] for row in rows for name in ("gpus", "relative_to_gpus")})
    reach = {n: max(row["gpus"] for row in rows if row["relative_to_gpus"] == n) for n in _bases(rows)}
    axes.set_xlabel(what)
    axes.set_ylabel("efficiency [%]" if percent else "speedup")
    if not rows:
        axes.set_xticks([])
        axes.set_yticks([])
        return
    scale_counts(axes, counts, logarithmic=len(counts) > 1 and counts[-1] > 16, both=not percent)
    if percent:
        axes.axhline(100, **IDEAL_LINE)
    elif len(counts) == 1:
        axes.axhline(1, **IDEAL_LINE)
    else:
        for base, last in reach.items():
            axes.plot([base, last], [1, last / base], **IDEAL_LINE)


def _bases(rows: Series) -> list[int]:
    return sorted({row["relative_to_gpus"] for row in rows})


def scale_counts(axes: Axes, counts: Sequence[int], logarithmic: bool, both: bool) -> None:
    """Ticks at the counts, to powers of two where they reach far."""
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


def _plot(axes: Axes, group: Series, quantity: str, scale: float, look: Look) -> None:
    named = look is not UNNAMED
    zorder = 3 if named else 2
    first_of_count = {row["gpus"]: row for row in reversed(group)}
    line = sorted(first_of_count)
    heights = [first_of_count[n][quantity] * scale for n in line]
    axes.plot(line, heights, color=look.colour, linewidth=1.1 if named else 0.6, zorder=zorder)
    for row in group:
        low, high = row[f"{quantity}_low"], row[f"{quantity}_high"]
        if low is not None and named:
            dotted = ":" if ONE_RUN in row[f"{quantity}_basis"] else "-"
            axes.vlines(row["gpus"], low * scale, high * scale, color=look.colour, linewidth=1.1, linestyle=dotted)
        face = "white" if is_hollow(marks_of(row)) else look.colour
        at = ([row["gpus"]], [row[quantity] * scale])
        axes.plot(*at, marker=look.marker, color=look.colour, mfc=face, zorder=zorder + 1)


def _cut_bars(axes: Axes, series: Sequence[Series], quantity: str) -> None:
    """Keeps the wide intervals of few runs from pressing all else flat: the table has their ends."""
    rows = [row for group in series for row in group]
    if not rows:
        return
    scale = 100.0 if quantity == "efficiency" else 1.0
    ideal = [row["ideal_speedup"] if quantity == "speedup" else 1.0 for row in rows]
    shown = [scale * value for value in (*ideal, *(row[quantity] for row in rows))]
    bottom, top = axes.get_ylim()
    # matplotlib's margin would begin a linear axis below 0, which neither quantity can be.
    bottom = max(bottom, min(shown) / 2 if axes.get_yscale() == "log" else 0.0)
    axes.set_ylim(bottom, min(top, 1.5 * max(shown)))


def _legend(series: Sequence[Series], common: str) -> list[Entry]:
    if not series:
        return []
    entries: list[Entry] = []
    for look, group in zip(LOOKS, series, strict=False):
        remarks = "; ".join([*_circumstances(group, series), *_marks_texts(group)])
        name = shortened(short_name(group[0]) if common else group[0]["label"], MOST_NAME)
        lines = wrapped(": ".join(filter(None, (name, remarks))), SINGLE)
        face = "white" if all(is_hollow(marks_of(row)) for row in group) else look.colour
        entries.append((Line2D([], [], color=look.colour, marker=look.marker, mfc=face), "\n".join(lines)))
    if len(series) > len(LOOKS):
        grey = Line2D([], [], color=UNNAMED.colour, marker=UNNAMED.marker)
        entries.append((grey, f"{len(series) - len(LOOKS)} further series, named in the table of the report"))
    entries.append((Line2D([], [], color=IDEAL.colour, linestyle=DASHED, linewidth=0.9), "ideal"))
    entries += hollow_entry([mark for group in series for row in group for mark in marks_of(row)])
    bases = [row["speedup_basis"] for group in series for row in group if row["speedup_low"] is not None]
    if any(ONE_RUN not in basis for basis in bases):
        entries.append((Line2D([], [], color=IDEAL.colour), "bar: 95 % interval, from repeated runs"))
    if any(ONE_RUN in basis for basis in bases):
        dotted = Line2D([], [], color=IDEAL.colour, linestyle=":")
        entries.append((dotted, f"dotted bar: 95 % interval, from the {ONE_RUN}"))
    return entries


def hollow_entry(marks: Sequence[str]) -> list[Entry]:
    """What hollow markers say, where there are any."""
    note = hollow_note(marks)
    if note is None:
        return []
    handle = Line2D([], [], color="none", marker="o", mec=IDEAL.colour, mfc="white")
    verdict = "\noversubscribed is not a scaling result" if OVERSUBSCRIBED in marks else ""
    return [(handle, note + verdict)]


def _circumstances(group: Series, series: Sequence[Series]) -> list[str]:
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
