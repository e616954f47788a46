"""Learning of the points as tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from analysis.base.text import DASH, hours_unit, percent, span
from analysis.measures.learning import COSTS, Learning
from analysis.measures.learning import POINT_COLUMNS as LEARNED
from analysis.report.frame import framed, heading, stacked
from analysis.report.sentences import ENOUGH_SEEDS, target_text
from analysis.tables.columns import SPREAD
from analysis.tables.point import Point
from analysis.tables.series import by_series
from analysis.tables.warnings import OVERSUBSCRIBED


def learning_tables(learning: Learning) -> list[Table]:
    """One table per series, two lines per evaluated point; with a target, the cost of reaching it."""
    return [_table(group, learning.target) for group in by_series(learning.points)]


def _table(rows: Sequence[Mapping[str, Any]], target: float | None) -> Table:
    first: Point = rows[0]["point"]
    table = framed(f"Learning: {first.series_name}")
    seen = stacked(LEARNED["samples"], LEARNED["epochs"])
    loss = heading(LEARNED["loss"]).replace(" ", "\n")
    headings = ["", stacked(LEARNED["accuracy"], SPREAD), heading(LEARNED["seeds"]), loss, seen]
    if target is not None:
        training, hours = stacked(LEARNED["to_train_seconds"], SPREAD), hours_unit(first.device)
        headings += [f"{percent(target, 1)}\n{heading(LEARNED['best'])}", training, seen, f"{hours}\n{heading(SPREAD)}"]
    for i, text in enumerate(headings):
        table.add_column(text, overflow="fold", justify="right" if i else "left")
    for row in rows:
        cells = _last_cells(row)
        if target is not None:
            cells += _target_cells(row)
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _last_cells(row: Mapping[str, Any]) -> list[str]:
    few = f"\nfewer than {ENOUGH_SEEDS}" if row["seeds"] < ENOUGH_SEEDS else ""
    shared = f"\n{OVERSUBSCRIBED}" if OVERSUBSCRIBED in row["point"].marks else ""
    return [
        f"{row['point'].size}{shared}",
        f"{LEARNED['accuracy'].text(row)}\n{span(row['accuracy_low'], row['accuracy_high'], tenths_alone)}",
        f"{row['seeds']}{few}",
        LEARNED["loss"].text(row),
        f"{LEARNED['samples'].text(row)}\n{LEARNED['epochs'].text(row)}",
    ]


def _target_cells(row: Mapping[str, Any]) -> list[str]:
    cells = [f"{target_text(row)}\n{LEARNED['best'].text(row)}"]
    if not row["reached"]:
        return [*cells, DASH, DASH, DASH]
    seconds, samples, epochs, hours = (LEARNED[f"to_{cost}"] for cost in COSTS[:4])
    return [
        *cells,
        f"{seconds.text(row)}\n{seconds.interval(row)}",
        f"{samples.text(row)}\n{epochs.text(row)}",
        f"{hours.text(row)}\n{hours.interval(row)}",
    ]


def tenths_alone(fraction: float | None) -> str:
    return percent(fraction, 1).removesuffix(" %")  # the figure above has the unit
