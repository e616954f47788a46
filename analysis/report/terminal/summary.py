"""What `python -m analysis results/<study>` prints: a summary that needs no file to be opened.

First what the study comes to, then the points, how much of the ideal speedup each size keeps, what has no figure and
why, and where the files are. `--full` adds all that the tables of `analysis.report.terminal.tables` say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from analysis.base.text import number, percent, printable, span, times
from analysis.read.run import COMPLETED
from analysis.read.study import statuses
from analysis.report.answers import answers_of
from analysis.report.headline import headline_sentences
from analysis.report.sentences import accuracy_notes, baseline, is_own_baseline, left_out, sample_notes
from analysis.report.terminal.learning import learning_tables
from analysis.report.terminal.tables import MARK_WORDS, WIDTH_OF_ALL_COLUMNS, points_tables, print_tables
from analysis.tables.warnings import marks_of

if TYPE_CHECKING:
    from analysis.report.findings import Findings

MOST_HEADLINES = 3
MOST_ROWS = 40  # of the table: two screens
MOST_PLOTTED = 4  # series
MOST_NAMED = 5  # runs, problems
WIDEST_BAR, NARROWEST_BAR = 40, 8
WIDTH_OF_ACCURACY = 66  # less has no room for it
# To the lower end of the interval, within it, and lost; analysis.base.text has what they are where a terminal lacks
# them.
KEPT, WITHIN, LOST, IDEAL = "█", "▓", "░", "│"
MORE = "with --full"
NOTE = (
    "95 %: an interval over the runs of a point; of a single run over its blocks: how steady it was, not what another "
    "would give (docs/method.md). Every table: --full."
)


def print_summary(console: Console, findings: Findings, written: Sequence[Path] = (), full: bool = False) -> None:
    """Prints the summary of a study. full: every series, every table, every path."""
    study, rows = findings.study, findings.rows
    ended = ", ".join(f"{n:,} {status}" for status, n in sorted(statuses(study.runs).items()))
    console.print(Text(f"{printable(study.name)}, {len(study.runs):,} runs: {ended}", style="bold"))
    _print_some(console, headline_sentences(findings), len(rows) if full else MOST_HEADLINES, "series")
    if not full:
        wide = console.width >= WIDTH_OF_ALL_COLUMNS
        for table in (points_tables if wide else short_tables)("Points", rows[:MOST_ROWS], console.width):
            console.print()
            console.print(table)
        if len(rows) > MOST_ROWS:
            console.print(Text(f"and {len(rows) - MOST_ROWS:,} more points, {MORE}"))
    print_efficiencies(console, findings, len(rows) if full else MOST_PLOTTED)
    if full:
        console.print()
        print_tables(console, findings)
    else:
        if findings.learning.target is not None:
            for table in learning_tables(findings.learning)[:MOST_PLOTTED]:
                console.print()
                console.print(table)
        notes = [NOTE, *sample_notes(rows), *accuracy_notes(rows)]
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


def short_tables(_: str, rows: Sequence[Mapping[str, Any]], width: int) -> list[Table]:
    """A table per series, under its name, for terminals without room for one of all; marks stand below throughputs."""
    tables = []
    roomy = width >= WIDTH_OF_ACCURACY
    for _, group in groupby(rows, key=lambda row: row["series"]):
        series = list(group)
        bases = dict.fromkeys(baseline(row) for row in series if row["relative_to_gpus"] is not None)
        named = (
            series[0]["label"],
            series[0]["precision"],
            series[0]["detail"],
            *(f"relative to {one}" for one in bases),
        )
        table = Table(
            title=Text(printable(", ".join(filter(None, named))), style="bold"),
            title_justify="left",
            box=None,
            padding=(0, 2, 0, 0),
            header_style="bold",
        )
        for heading in (
            "ranks" if series[0]["device"] == "cpu" else "GPUs",
            "samples/s (95 %)",
            "speedup (95 %)",
            "runs",
        ):
            table.add_column(heading, justify="left" if heading.startswith("samples") else "right", overflow="fold")
        if roomy:
            table.add_column("test acc.", justify="right", overflow="fold")
        for row in series:
            table.add_row(*_short_cells(row, roomy))
        tables.append(table)
    return tables


def _short_cells(row: Mapping[str, Any], roomy: bool) -> list[Text]:
    rate = Text(_ranged(row, "samples_per_second", number))
    if row["status"] != COMPLETED:
        rate.append(f"\n{row['status']}", "red")
    if marks := ", ".join(MARK_WORDS.get(mark, mark) for mark in marks_of(row)):
        rate.append(f"\n{marks}", "yellow")
    runs = str(row["runs_completed"])
    cells = [Text(str(row["gpus"])), rate, Text(_ranged(row, "speedup", times)), Text(runs)]
    return [*cells, Text(percent(row["test_accuracy"], 1))] if roomy else cells


def _ranged(row: Mapping[str, Any], name: str, show: Callable[[float | None], str]) -> str:
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return show(row[name]) + ("" if low is None else f" ({span(low, high, show)})")


def print_efficiencies(console: Console, findings: Findings, most: int) -> None:
    """A bar per point of the series that have a speedup: the share of the ideal one that is kept, with its interval."""
    names = {answer.point["series"]: answer.name for answer in answers_of(findings.rows, findings.losses)}
    drawn = []
    for series, group in groupby(findings.rows, key=lambda row: row["series"]):
        points = [row for row in group if row["efficiency"] is not None]
        if any(not is_own_baseline(row) for row in points):
            drawn.append((names[series], points))
    if not drawn:
        return
    shown = [row for _, points in drawn[:most] for row in points]
    top = max(1.0, *(row["efficiency_high"] or row["efficiency"] for row in shown))
    said = [_said(row) for row in shown]
    labels = max(len(f"{row['gpus']}") for row in shown)
    width = min(WIDEST_BAR, console.width - labels - max(map(len, said)) - 6)
    unit = "ranks" if all(row["device"] == "cpu" for row in shown) else "GPUs"
    legend = f"{KEPT} to its lower end, {WITHIN} the 95 % interval, {LOST} lost, {IDEAL} ideal"
    title = f"Efficiency by {unit}" + (f": {legend}" if width >= NARROWEST_BAR else "")
    console.print()
    console.print(Text(title, style="bold"))
    for name, points in drawn[:most]:
        console.print(Text(f"{name}"))
        for row in points:
            line = Text(f"  {row['gpus']:>{labels}} ")
            if width >= NARROWEST_BAR:
                line.append(bar(row["efficiency"], row["efficiency_low"], row["efficiency_high"], top, width), "cyan")
            line.append(f" {_said(row)}")
            if marks := ", ".join(marks_of(row)):
                apart = "\n" + " " * (labels + 3) if len(line) + len(marks) + 3 > console.width else " "
                line.append(f"{apart}({marks})", "yellow")
            console.print(line)
    if len(drawn) > most:
        console.print(Text(f"and {len(drawn) - most:,} more series, {MORE}"))


def bar(value: float, low: float | None, high: float | None, top: float, width: int) -> str:
    """`width` characters from 0 to `top`, and one for the ideal, which is 1. Without an interval, KEPT ends at the
    value."""
    kept, within = (round(width * end / top) for end in ((value, value) if low is None else (low, high or value)))
    ideal = round(width / top)
    cells = (KEPT * kept).ljust(within, WITHIN).ljust(ideal, LOST).ljust(width)
    return cells[:ideal] + IDEAL + cells[ideal:]


def _said(row: Mapping[str, Any]) -> str:
    return f"{_ranged(row, 'efficiency', percent)}, {times(row['speedup'])}"


def _print_some(console: Console, lines: Sequence[str], most: int, what: str, style: str = "") -> None:
    for line in lines[:most]:
        console.print(Text(printable(line), style=style))
    if len(lines) > most:
        console.print(Text(f"and {len(lines) - most:,} more {what}, {MORE}"))


def _places(written: Sequence[Path], full: bool) -> list[str]:
    """The files; those of a folder within the report's by their number."""
    if full:
        return [str(path) for path in written]
    top = min(len(path.parts) for path in written)
    within = Counter(path.parent for path in written if len(path.parts) > top)
    return [
        *(str(path) for path in written if len(path.parts) == top),
        *(f"{folder}/ ({n} files)" for folder, n in within.items()),
    ]
