"""The figures of a study that one looks for first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis.base.text import duration, energy, gpus_text, hours_unit, number, percent, span
from analysis.report.sentences import is_own_baseline
from analysis.tables.warnings import (
    BASELINE_OVERSUBSCRIBED,
    BASELINE_WORK_DIFFERS,
    OVERSUBSCRIBED,
    WORK_DIFFERS,
    marks_of,
)
from harness.core.spec import EMULATED

if TYPE_CHECKING:
    from analysis.report.findings import Findings

# Points with one of these are taken only where there is no other: what they show is not how training scales here.
DOUBTFUL = {OVERSUBSCRIBED, BASELINE_OVERSUBSCRIBED, WORK_DIFFERS, BASELINE_WORK_DIFFERS, EMULATED}
# Below it computing centres ask for reasons.
GOOD_EFFICIENCY = 0.7

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Figure:
    """name: what it is. value: with its unit. of: where it was measured. marks: those of its point."""

    name: str
    value: str
    of: str
    marks: Sequence[str]


def figures_at_a_glance(findings: Findings, names: Mapping[str, str]) -> list[Figure]:
    """names: of the series, as the answers call them. Of each figure the best point, sound ones before doubtful ones;
    figures that no point has are left out."""
    scaled = [row for row in findings.rows if row["speedup"] is not None and not is_own_baseline(row)]
    efficient = [row for row in scaled if row["efficiency"] >= GOOD_EFFICIENCY]

    def told(row: Row, name: str = "", show: Callable[[float | None], str] = number) -> str:
        low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
        interval = "" if low is None else f" ({span(low, high, show)})"
        return f"{gpus_text(row['gpus'], row['device'])}{interval}, {names[row['series']]}"

    def best(name: str, rows: Sequence[Row], value: str, show: Callable[[Row], str], low: bool = False) -> list[Figure]:
        known = [row for row in rows if row.get(value) is not None]
        sound = [row for row in known if not DOUBTFUL & set(marks_of(row))] or known
        if not sound:
            return []
        row = (min if low else max)(sound, key=lambda row: (row[value], row.get("efficiency") or 0))
        ends = percent if value in ("efficiency", "test_accuracy") else number
        return [Figure(name, show(row), told(row, value, ends), marks_of(row))]

    hours = hours_unit(findings.rows[0]["device"]) if findings.rows else ""
    return [
        *best("Largest speedup", scaled, "speedup", lambda row: f"{number(row['speedup'])}×"),
        *best(
            f"Most {'ranks' if hours == 'rank-hours' else 'GPUs'} at {percent(GOOD_EFFICIENCY)} efficiency or more",
            efficient,
            "gpus",
            lambda row: f"{row['gpus']:,} at {percent(row['efficiency'])}",
        ),
        *best(
            "Highest throughput",
            findings.rows,
            "samples_per_second",
            lambda row: f"{number(row['samples_per_second'])} samples/s",
        ),
        *best(
            "Shortest epoch", findings.decisions, "epoch_seconds", lambda row: duration(row["epoch_seconds"]), low=True
        ),
        *best(
            f"Fewest {hours} per epoch",
            findings.decisions,
            "epoch_gpu_hours",
            lambda row: number(row["epoch_gpu_hours"]),
            low=True,
        ),
        *best(
            "Least energy per sample",
            [row for row in findings.resources if row.get("joules_per_sample") is not None],
            "joules_per_sample",
            lambda row: energy(row["joules_per_sample"]),
            low=True,
        ),
        *best("Best test accuracy", findings.rows, "test_accuracy", lambda row: percent(row["test_accuracy"], 1)),
    ]
