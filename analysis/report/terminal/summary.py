"""The summary that `python -m analysis results/<study>` prints, readable without opening a file.

Headlines first, then the points, the efficiency at each size, runs without figures and their reasons, and the paths of
the files. `--full` adds all tables of `analysis.report.terminal.tables`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from analysis.base.text import number, percent, printable, times
from analysis.read.run import COMPLETED
from analysis.read.study import statuses
from analysis.report.answers import answers_of
from analysis.report.best import worth
from analysis.report.frame import heading
from analysis.report.headline import headline_sentences
from analysis.report.sentences import accuracy_notes, baseline, is_own_baseline, left_out, ranged, sample_notes
from analysis.report.terminal.learning import learning_tables
from analysis.report.terminal.tables import MARK_WORDS, WIDTH_OF_ALL_COLUMNS, points_tables, print_tables
from analysis.stats.intervals import Interval
from analysis.tables.columns import CONFIDENCE_INTERVAL, POINT, of_point
from analysis.tables.point import Point
from analysis.tables.series import by_series, rate_column

if TYPE_CHECKING:
    from analysis.report.findings import Findings

MOST_HEADLINES = 3
MOST_ROWS = 40  # of the table; two screens
MOST_PLOTTED = 4  # series
MOST_NAMED = 5  # runs, problems
WIDEST_BAR, NARROWEST_BAR = 40, 8
WIDTH_OF_ACCURACY = 66  # omitted in narrower terminals
# Up to the lower end of the interval, within it, and lost; analysis.base.text has substitutes for terminals that lack
# these characters.
KEPT, WITHIN, LOST, IDEAL = "█", "▓", "░", "│"
MORE = "with --full"
NOTE = (
    "95 %: an interval over the runs of a point; of a single run over its blocks: how steady it was, not what another "
    "would give (docs/method.md). Every table: --full."
)


def print_summary(console: Console, findings: Findings, written: Sequence[Path] = (), full: bool = False) -> None:
    """Print the summary of a study. full: every series, table and path."""
    study, points = findings.study, findings.points
    ended = ", ".join(f"{n:,} {status}" for status, n in sorted(statuses(study.runs).items()))
    console.print(Text(f"{printable(study.name)}, {len(study.runs):,} runs: {ended}", style="bold"))
    _print_some(console, headline_sentences(findings), len(points) if full else MOST_HEADLINES, "series")
    if not full:
        wide = console.width >= WIDTH_OF_ALL_COLUMNS
        for table in (points_tables if wide else short_tables)("Points", points[:MOST_ROWS], console.width):
            console.print()
            console.print(table)
        if len(points) > MOST_ROWS:
            console.print(Text(f"and {len(points) - MOST_ROWS:,} more points, {MORE}"))
    print_efficiencies(console, findings, len(points) if full else MOST_PLOTTED)
    if full:
        console.print()
        print_tables(console, findings)
    else:
        if findings.learning.target is not None:
            for table in learning_tables(findings.learning)[:MOST_PLOTTED]:
                console.print()
                console.print(table)
        notes = [NOTE, *sample_notes(points), *accuracy_notes(points)]
        console.print()
        console.print(Text(" ".join(notes), style="dim"))
        others = [run for run in study.runs if not run.completed]
        named = [f"{run.run_id}: {run.status}: {run.reason or 'no reason given'}" for run in others]
        _print_some(console, named, MOST_NAMED, "runs", "red")
        problems = [*left_out(study), *(f"problem: {text}" for text in (*study.problems, *findings.work.problems))]
        _print_some(console, problems, MOST_NAMED, "problems", "yellow")
    if written:
        console.print("written:")
        for line in _places(written, full):
            console.print(Text(f"  {line}"), soft_wrap=True)


def short_tables(_: str, points: Sequence[Point], width: int) -> list[Table]:
    """Return a table per series, for narrow terminals; warnings are below throughputs."""
    tables = []
    roomy = width >= WIDTH_OF_ACCURACY
    for series in by_series(points):
        bases = dict.fromkeys(baseline(point) for point in series if point.measured)
        named = (series[0].series_name, *(f"relative to {one}" for one in bases))
        table = Table(
            title=Text(printable(", ".join(named)), style="bold"),
            title_justify="left",
            box=None,
            padding=(0, 2, 0, 0),
            header_style="bold",
        )
        rate, speedup = (
            f"{heading(column)} ({CONFIDENCE_INTERVAL.short})" for column in (rate_column(series), POINT["speedup"])
        )
        others = [heading(column) for column in of_point("runs_completed", "test_accuracy")]
        for text in ("ranks" if series[0].device == "cpu" else "GPUs", rate, speedup, *others[: 1 + roomy]):
            table.add_column(text, justify="left" if text == rate else "right", overflow="fold")
        for point in series:
            table.add_row(*_short_cells(point, roomy))
        tables.append(table)
    return tables


def _short_cells(point: Point, roomy: bool) -> list[Text]:
    rate = Text(ranged(point.interval("samples_per_second"), number))
    if point.status != COMPLETED:
        rate.append(f"\n{point.status}", "red")
    if marks := ", ".join(MARK_WORDS.get(mark, mark) for mark in point.marks):
        rate.append(f"\n{marks}", "yellow")
    runs = str(point.runs_completed)
    cells = [Text(str(point.gpus)), rate, Text(ranged(point.interval("speedup"), times)), Text(runs)]
    return [*cells, Text(percent(point.test_accuracy, 1))] if roomy else cells


def print_efficiencies(console: Console, findings: Findings, most: int) -> None:
    """Print a bar for each point with a speedup: its efficiency and interval."""
    names = {answer.point.series: answer.name for answer in answers_of(findings.points, findings.losses)}
    drawn = []
    for group in by_series(findings.points):
        kept = [(point, found) for point in group if (found := point.interval("efficiency")) is not None]
        if any(not is_own_baseline(point) for point, _ in kept):
            drawn.append((names[group[0].series], kept))
    if not drawn:
        return
    if len(drawn) > most and not any(point.shown for point in findings.points):
        drawn = sorted(drawn, key=lambda one: worth(one[1][-1][0]), reverse=True)
    shown = [one for _, kept in drawn[:most] for one in kept]
    top = max(1.0, *(found.high or found.estimate for _, found in shown))
    said = [_said(point) for point, _ in shown]
    labels = max(len(f"{point.gpus}") for point, _ in shown)
    width = min(WIDEST_BAR, console.width - labels - max(map(len, said)) - 6)
    unit = "ranks" if all(point.device == "cpu" for point, _ in shown) else "GPUs"
    legend = f"{KEPT} to its lower end, {WITHIN} the 95 % interval, {LOST} lost, {IDEAL} ideal"
    title = f"Efficiency by {unit}" + (f": {legend}" if width >= NARROWEST_BAR else "")
    console.print()
    console.print(Text(title, style="bold"))
    for name, kept in drawn[:most]:
        console.print(Text(f"{name}"))
        for point, found in kept:
            line = Text(f"  {point.gpus:>{labels}} ")
            if width >= NARROWEST_BAR:
                line.append(bar(found, top, width), "cyan")
            line.append(f" {_said(point)}")
            if marks := ", ".join(point.marks):
                apart = "\n" + " " * (labels + 3) if len(line) + len(marks) + 3 > console.width else " "
                line.append(f"{apart}({marks})", "yellow")
            console.print(line)
    if len(drawn) > most:
        console.print(Text(f"and {len(drawn) - most:,} more series, {MORE}"))


def bar(value: Interval, top: float, width: int) -> str:
    """Return a bar of `width` characters from 0 to `top`, marking the ideal, 1. Without an interval, KEPT ends at the
    value."""
    ends = value.estimate if value.low is None else value.low, value.high or value.estimate
    kept, within = (round(width * end / top) for end in ends)
    ideal = round(width / top)
    cells = (KEPT * kept).ljust(within, WITHIN).ljust(ideal, LOST).ljust(width)
    return cells[:ideal] + IDEAL + cells[ideal:]


def _said(point: Point) -> str:
    return f"{ranged(point.interval('efficiency'), percent)}, {times(point.speedup)}"


def _print_some(console: Console, lines: Sequence[str], most: int, what: str, style: str = "") -> None:
    for line in lines[:most]:
        console.print(Text(printable(line), style=style))
    if len(lines) > most:
        console.print(Text(f"and {len(lines) - most:,} more {what}, {MORE}"))


def _places(written: Sequence[Path], full: bool) -> list[str]:
    """Return the paths written; for folders within the report's folder, only the number of files."""
    if full:
        return [str(path) for path in written]
    top = min(len(path.parts) for path in written)
    within = Counter(path.parent for path in written if len(path.parts) > top)
    return [
        *(str(path) for path in written if len(path.parts) == top),
        *(f"{folder}/ ({n} files)" for folder, n in within.items()),
    ]
