"""What the points learned, as tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.table import Table
from rich.text import Text

from analysis.base.text import DASH, count, duration, gpus_text, hours_unit, number, percent, span
from analysis.measures.learning import Learning
from analysis.report.frame import framed
from analysis.report.sentences import ENOUGH_SEEDS, target_text
from analysis.tables.warnings import OVERSUBSCRIBED, marks_of

LAST_COLUMNS = ["", "test accuracy\nrange", "seeds", "test\nloss", "samples\nepochs"]


def learning_tables(learning: Learning) -> list[Table]:
    """One per series, under its name: two lines for each point that was evaluated; with a target, what it took to
    reach it."""
    groups = groupby(learning.points, key=lambda point: point["series"])
    return [_table(list(group), learning.target) for _, group in groups]


def _table(points: Sequence[Mapping[str, Any]], target: float | None) -> Table:
    name = ", ".join(filter(None, (points[0]["label"], points[0]["precision"], points[0]["detail"])))
    table = framed(f"Learning: {name}")
    headings = list(LAST_COLUMNS)
    if target is not None:
        hours = hours_unit(points[0]["device"])
        headings += [f"{percent(target, 1)}\nbest", "training\nrange", "samples\nepochs", f"{hours}\nrange"]
    for i, heading in enumerate(headings):
        table.add_column(heading, overflow="fold", justify="right" if i else "left")
    for point in points:
        cells = _last_cells(point)
        if target is not None:
            cells += _target_cells(point)
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _last_cells(point: Mapping[str, Any]) -> list[str]:
    few = f"\nfewer than {ENOUGH_SEEDS}" if point["seeds"] < ENOUGH_SEEDS else ""
    shared = f"\n{OVERSUBSCRIBED}" if OVERSUBSCRIBED in marks_of(point) else ""
    return [
        f"{gpus_text(point['gpus'], point['device'])}{shared}",
        f"{percent(point['accuracy'], 1)}\n{span(point['accuracy_low'], point['accuracy_high'], _tenths)}",
        f"{point['seeds']}{few}",
        number(point["loss"]),
        f"{count(point['samples'])}\n{number(point['epochs'])}",
    ]


def _target_cells(point: Mapping[str, Any]) -> list[str]:
    cells = [f"{target_text(point)}\n{percent(point['best'], 1)}"]
    if not point["reached"]:
        return [*cells, DASH, DASH, DASH]
    seconds, hours = ((point[f"to_{name}_low"], point[f"to_{name}_high"]) for name in ("train_seconds", "gpu_hours"))
    return [
        *cells,
        f"{duration(point['to_train_seconds'])}\n{span(*seconds, duration)}",
        f"{count(point['to_samples'])}\n{number(point['to_epochs'])}",
        f"{number(point['to_gpu_hours'])}\n{span(*hours)}",
    ]


def _tenths(fraction: float | None) -> str:
    return percent(fraction, 1).removesuffix(" %")  # the figure above it has the unit
