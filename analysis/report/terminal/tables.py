"""The tables of a study for the terminal."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from analysis.base.constants import IMPORTED, OWN_TRAININGS
from analysis.base.text import DASH, count, printable, shortened, span
from analysis.measures.comparisons import COMPARISON_NOTE
from analysis.measures.data_price import DATA_NOTE, price_sentences
from analysis.measures.decisions import front_sentences
from analysis.measures.equal_work import COLUMNS as WORK
from analysis.measures.equal_work import differs
from analysis.measures.network import BOUNDS
from analysis.read.run import COMPLETED
from analysis.read.study import statuses
from analysis.report.failures import FAILURES_NOTE
from analysis.report.frame import framed, heading, stacked
from analysis.report.losses import BREAKDOWN_NOTE, lacking_sentences, loss_sentences, loss_tables
from analysis.report.published import PUBLISHED_NOTE
from analysis.report.sentences import (
    GOODPUT_NOTE,
    LEARNING_NOTE,
    WORK_NOTE,
    accuracy_notes,
    baseline,
    compared_with,
    headlines,
    interval_note,
    left_out,
    sample_notes,
    steadiness_lines,
)
from analysis.report.series_names import common_words, measured_series, names_of
from analysis.report.terminal.learning import learning_tables, tenths_alone
from analysis.tables.columns import BASIS, CONFIDENCE_INTERVAL, POINT, SPREAD, WHAT, of_point
from analysis.tables.names import training_name
from analysis.tables.point import Point
from analysis.tables.series import by_series, rate_column
from analysis.tables.warnings import OVERSUBSCRIBED
from harness.core.spec import EMULATED

if TYPE_CHECKING:
    from analysis.report.findings import Findings

MOST_LOSS_TABLES = 6  # in the terminal, one per series
MOST_LACKING = 3  # runs named for each reason why they have no probes
MOST_NAMED_RUNS = 20  # in the terminal; the report names every one
WIDTH_OF_A_FILE = 160  # columns if the output is not a terminal
WIDTH_OF_ALL_COLUMNS = 150
WIDTH_OF_GOODPUT = 95  # omitted in narrower terminals
# Each column has a line of one column above a line of another.
SERIES = (("framework", "strategy"), ("model", "dataset"), ("scaling", "precision"))
SERIES_COLUMNS = [stacked(*of_point(*names)) for names in SERIES]
FIGURES = (
    (POINT["global_batch"], POINT["batch_per_gpu"]),
    (POINT["samples_per_second"], CONFIDENCE_INTERVAL),
    (POINT["runs_completed"], BASIS),
    (POINT["speedup"], POINT["relative_to_gpus"]),
    (POINT["efficiency"], CONFIDENCE_INTERVAL),
    (POINT["test_accuracy"], SPREAD),
    (POINT["goodput"], SPREAD),
)
DIFFERENCES = (
    (WORK["parameters"], WORK["reference_parameters"]),
    (WORK["gradient_magnitude_difference"], WORK["gradient_bound"]),
    *((WORK[f"{name}_difference"], WORK[f"{name}_bound"]) for name in BOUNDS),
)
MOST_OF_A_NAME = 36  # columns of a series' name, which is wrapped
MARK_WORDS = {
    OVERSUBSCRIBED: "oversubscribed: not a scaling result",
    EMULATED: "emulated: its costs were set, not found",
}


def terminal(stream: TextIO) -> Console:
    """Return a console as wide as the terminal; without one, wide enough for the tables."""
    width = None if stream.isatty() or "COLUMNS" in os.environ else WIDTH_OF_A_FILE
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False)


def print_tables(console: Console, findings: Findings) -> None:
    """Print points, headlines, breakdown, costs, learning, equal work, and runs without figures with their reasons."""
    study, points, work = findings.study, findings.points, findings.work
    learning, losses = findings.learning, findings.losses
    for table in points_tables(study.name, points, console.width):
        console.print(table)
    _print_lines(console, headlines(points), "series")
    if findings.prices:
        _print_lines(console, price_sentences(findings.prices), "points")
        console.print(Text(DATA_NOTE, style="dim"))
    if findings.published:
        lines = [
            line
            for both in findings.published
            for line in (f"published: {both.published}", f"this study: {both.own}", f"  {both.verdict}")
        ]
        _print_lines(console, lines)
        console.print(Text(PUBLISHED_NOTE, style="dim"))
    if lines := steadiness_lines(points):
        _print_lines(console, lines, "points")
    comparisons = findings.comparisons
    _print_lines(console, comparisons.sentences, "comparisons")
    _print_lines(console, list(comparisons.left_out))
    if comparisons.rows:
        console.print(Text(COMPARISON_NOTE, style="dim"))
    if findings.failure_costs:
        _print_lines(console, findings.failure_costs, "points")
        console.print(Text(FAILURES_NOTE, style="dim"))
    notes = [interval_note(points), *([GOODPUT_NOTE] * (console.width >= WIDTH_OF_GOODPUT))]
    console.print(Text(" ".join([*notes, *sample_notes(points), *accuracy_notes(points)]), style="dim"))
    if tables := loss_tables(losses):
        for table in tables[:MOST_LOSS_TABLES]:
            console.print(table)
        if len(tables) > MOST_LOSS_TABLES:
            console.print(Text(f"  and {len(tables) - MOST_LOSS_TABLES:,} more series, in report.html"))
        _print_lines(console, loss_sentences(losses), "series")
        console.print(Text(BREAKDOWN_NOTE, style="dim"))
    _print_lines(console, lacking_sentences(losses, MOST_LACKING), "reasons")
    _print_lines(console, front_sentences(findings.decisions), "fronts")
    if learning.asked_for:
        for table in learning_tables(learning):
            console.print(table)
        console.print(Text(LEARNING_NOTE, style="dim"))
    if work.rows:
        # If not all are shown, those that differ come first.
        shown = sorted(work.rows, key=differs, reverse=True) if len(work.rows) > MOST_NAMED_RUNS else work.rows
        console.print(work_table(shown[:MOST_NAMED_RUNS], console.width))
        if len(shown) > MOST_NAMED_RUNS:
            console.print(Text(f"  and {len(shown) - MOST_NAMED_RUNS:,} more points, in report.html"))
        console.print(Text(WORK_NOTE, style="dim"))
    others = [run for run in study.runs if not run.completed]
    ended = ", ".join(f"{n} {status}" for status, n in sorted(statuses(study.runs).items()))
    _print_lines(console, [f"{len(study.runs):,} runs: {ended}"])
    named = [f"  {run.run_id}: {run.status}: {run.reason or 'no reason given'}" for run in others]
    _print_lines(console, named, "runs")
    _print_lines(console, left_out(study))
    problems = [f"  problem: {problem}" for problem in (*study.problems, *work.problems)]
    _print_lines(console, problems, "problems")


def points_tables(title: str, points: Sequence[Point], width: int) -> list[Table]:
    """One row of two lines per point; in narrow terminals, a table per series."""
    if width >= WIDTH_OF_ALL_COLUMNS:
        measured = measured_series(points)
        every = common_words(measured) if measured else ""
        return [_table(": ".join(filter(None, (title, every))), points, names_of(points), goodput=True)]
    goodput = width >= WIDTH_OF_GOODPUT
    return [_table(group[0].series_name, group, None, goodput=goodput) for group in by_series(points)]


def work_table(rows: Sequence[Mapping[str, Any]], width: int) -> Table:
    """Equal work: two lines per compared point."""
    wide = width >= WIDTH_OF_ALL_COLUMNS
    table = framed("Equal work", wide)
    unit = "ranks" if all(row["device"] == "cpu" for row in rows) else "GPUs"
    for text in (
        *(SERIES_COLUMNS if wide else [heading(WHAT)]),
        f"{unit}\n{heading(POINT['global_batch'], wide)}",
        heading(WORK["reference_framework"]).replace(" ", "\n"),
        *([stacked(*lines) for lines in DIFFERENCES] if wide else []),
        heading(WORK["verdict"]),
    ):
        table.add_column(text, overflow="fold")
    for row in rows:
        gpus = Text(f"{row['gpus']}\n{count(row['global_batch'])}")
        reference = Text(compared_with(row, "\n"))
        verdict = Text(row["verdict"], style="red" if differs(row) else "")
        if wide:
            table.add_row(*_series_cells(row), gpus, reference, *_difference_cells(row), verdict)
        else:
            what = ", ".join(filter(None, (row["model"], row["dataset"], row["scaling"], row["detail"])))
            table.add_row(Text(f"{training_name(row['framework'], row['strategy'])}\n{what}"), gpus, reference, verdict)
    return table


def _table(title: str, points: Sequence[Point], names: Mapping[str, str] | None, goodput: bool) -> Table:
    """names: of the series, for a table of several; None for a table whose title names its series."""
    all_columns = names is not None
    table = framed(title, all_columns)
    unit = "ranks" if points and all(point.device == "cpu" for point in points) else "GPUs"
    if all_columns:
        table.add_column("series", overflow="fold", max_width=MOST_OF_A_NAME)
    table.add_column(f"{unit}\nnodes x ranks" if all_columns else f"{unit}\nn x r", overflow="fold")
    figures = [
        (rate_column(points) if upper is POINT["samples_per_second"] else upper, lower) for upper, lower in FIGURES
    ]
    for lines in figures if goodput else figures[:-1]:
        # folded, since a truncated number would be wrong
        table.add_column(stacked(*lines, wide=all_columns), justify="right", overflow="fold")
    table.add_column(stacked(*of_point("status", "marks")), overflow="fold")
    for i, point in enumerate(points):
        last = i + 1 == len(points) or points[i + 1].series != point.series
        first = i == 0 or points[i - 1].series != point.series
        cells = [] if names is None else [Text(names.get(point.series, point.series_name) if first else "")]
        table.add_row(*cells, *_cells(point, goodput), end_section=last)
    return table


def _series_cells(row: Mapping[str, Any]) -> list[Text]:
    own = row["framework"] in OWN_TRAININGS
    named = row["framework"] if row["framework"] == IMPORTED else "your\ntraining"
    what = Text(named if own else training_name(row["framework"], row["strategy"], "\n"))
    if row["detail"]:
        what.append("\n" + shortened(row["detail"], 72), style="dim")
    of = ("", "") if own else (f"\n{row['dataset']}", f"\n{row['precision']}")
    return [what, Text(f"{row['model']}{of[0]}"), Text(f"{row['scaling']}{of[1]}")]


def _cells(point: Point, goodput: bool) -> list[Text]:
    relative = f"to {baseline(point)}" if point.measured else DASH
    basis = DASH if point.samples_per_second_low is None else str(point.samples_per_second_basis)
    basis = basis.replace(" one", "\none")  # else that column is wide, and warnings are truncated
    marks = ", ".join(MARK_WORDS.get(mark, mark) for mark in point.marks)
    status = Text(point.status, style="" if point.status == COMPLETED else "red")
    status.append("\n" + marks, style="yellow")
    accuracy_range = span(point.test_accuracy_low, point.test_accuracy_high, tenths_alone)
    cells = [
        f"{point.gpus}\n{point.nodes} x {point.ranks_per_node}",
        f"{count(point.global_batch)}\n{count(point.batch_per_gpu)}",
        _with_interval(point, "samples_per_second"),
        f"{point.runs_completed}\n{basis}",
        f"{POINT['speedup'].text(point)}\n{relative}",
        _with_interval(point, "efficiency"),
        f"{POINT['test_accuracy'].text(point)}\n{accuracy_range}",
    ]
    if goodput:
        cells.append(_with_interval(point, "goodput"))
    return [*(Text(cell) for cell in cells), status]


def _with_interval(point: Point, name: str) -> str:
    return f"{POINT[name].text(point)}\n{POINT[name].interval(point)}"


def _difference_cells(row: Mapping[str, Any]) -> list[Text]:
    """Each figure above its bound; of the first gradient, those of its sum and of its magnitude."""
    cells = []
    for figure, bound in DIFFERENCES:
        of_sum = [WORK["gradient_sum_difference"]] if figure.name.startswith("gradient_") else []
        told = dict.fromkeys(column.text(row) for column in (*of_sum, figure))
        cells.append(Text(f"{', '.join(told)}\n{bound.text(row)}"))
    return cells


def _print_lines(console: Console, lines: list[str], what: str = "lines") -> None:
    for line in lines[:MOST_NAMED_RUNS]:
        console.print(Text(printable(line)))
    if len(lines) > MOST_NAMED_RUNS:
        console.print(Text(f"  and {len(lines) - MOST_NAMED_RUNS:,} more {what}, in report.html"))
