"""A study's findings as CSV: a table of each kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from analysis.base.frames import frame_of
from analysis.measures import comparisons, data_price, decisions, equal_work, learning, resources
from analysis.report import roofline, startup
from analysis.report.data.cells import inert_csv
from analysis.report.losses import breakdown_csv
from analysis.tables.point import COLUMNS as POINT_COLUMNS

if TYPE_CHECKING:
    from analysis.report.findings import Findings

SCALING_COLUMNS = [
    *("framework", "strategy", "communication", "model", "dataset", "precision", "scaling", "detail", "cluster"),
    *("device", "device_names", "versions", "code_versions"),
    *("gpus", "nodes", "ranks_per_node", "global_batch", "batch_per_gpu"),
    *("runs_completed", "runs_all", "status"),
    *("samples_per_second", "samples_per_second_low", "samples_per_second_high", "samples_per_second_basis"),
    *("samples_per_second_min", "samples_per_second_max", "blocks", "outlier_blocks"),
    *("relative_to_gpus", "relative_to_strategy", "ideal_speedup", "speedup", "speedup_low", "speedup_high"),
    "speedup_basis",
    *("efficiency", "efficiency_low", "efficiency_high", "efficiency_basis"),
    *("test_accuracy", "test_accuracy_low", "test_accuracy_high", "test_accuracy_basis"),
    *("test_samples", "samples_seen"),
    *("goodput", "goodput_low", "goodput_high", "goodput_basis", "attempts"),
    *("step_seconds", "cached_batch_seconds", "no_sync_seconds", "data_stall_seconds"),
    *("exposed_communication_seconds", "startup_seconds", "first_step_seconds", "first_block_seconds"),
    *("staleness_mean", "staleness_max"),
    *("marks", "notes", "oversubscribed", "reasons", "run_ids"),
]
SEVERAL = ("marks", "run_ids", "reference_run_ids")  # columns of several values
DAMAGE_COLUMNS = {**dict.fromkeys(["run_id", "file", "kind"], "string"), "count": "Int64", "sentence": "string"}


def csv_of(findings: Findings) -> dict[str, bytes]:
    """The tables by the names of their files; what a spreadsheet would run has an apostrophe before it."""
    return {name: inert_csv(text).encode("utf-8") for name, text in csv_tables(findings).items()}


def csv_tables(findings: Findings) -> dict[str, str]:
    """CSV by the names of their files. Units are in the names of the columns; marks and reasons are joined by ';',
    absent values are empty."""
    scaling = {name: POINT_COLUMNS[name] for name in SCALING_COLUMNS}
    tables = {
        "scaling.csv": csv_text([point.row() for point in findings.points], scaling),
        "breakdown.csv": breakdown_csv(findings.losses),
        "comparisons.csv": csv_text(findings.comparisons.rows, comparisons.COLUMNS),
        "decisions.csv": csv_text(findings.decisions, decisions.COLUMNS),
        "learning.csv": csv_text(findings.learning.rows, learning.COLUMNS),
        "resources.csv": csv_text(findings.resources, resources.COLUMNS),
        "equal_work.csv": csv_text(findings.work.rows, equal_work.COLUMNS),
    }
    if findings.startup:
        tables["startup.csv"] = csv_text(findings.startup, startup.COLUMNS)
    if findings.study.damage:
        tables["damage.csv"] = csv_text(findings.study.damage, DAMAGE_COLUMNS)
    if findings.roofline:
        tables["roofline.csv"] = csv_text(findings.roofline, roofline.COLUMNS)
    return tables | ({"data.csv": csv_text(findings.prices, data_price.COLUMNS)} if findings.prices else {})


def csv_text(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> str:
    """One line per row; columns: their pandas types by their names."""
    return frame_of([_cells(row) for row in rows], columns).to_csv(index=False, lineterminator="\n")


def _cells(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with the columns of its point, if it has one, and with several values of a cell as one text."""
    cells = {**row["point"].row(), **row} if "point" in row else dict(row)
    return cells | {name: ";".join(cells[name]) or None for name in SEVERAL if isinstance(cells.get(name), tuple)}
