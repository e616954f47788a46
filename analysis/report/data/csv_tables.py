"""A study's findings as CSV, one table per kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from analysis.base.column import COUNT, TEXT, Column, table
from analysis.base.frames import frame_of
from analysis.measures import comparisons, data_price, decisions, equal_work, learning, resources
from analysis.report import losses, roofline, startup
from analysis.report.data.cells import csv_of_frame
from analysis.report.losses import breakdown_row
from analysis.tables.columns import of_point

if TYPE_CHECKING:
    from analysis.report.findings import Findings

SCALING = table(
    *of_point(
        "framework", "strategy", "communication", "model", "dataset", "precision", "scaling", "detail", "cluster"
    ),
    *of_point("device", "device_names", "versions", "code_versions"),
    *of_point("gpus", "nodes", "ranks_per_node", "global_batch", "batch_per_gpu"),
    *of_point("runs_completed", "runs_all", "status", "samples_per_second", "blocks", "outlier_blocks"),
    *of_point("relative_to_gpus", "relative_to_strategy", "ideal_speedup", "speedup", "efficiency", "test_accuracy"),
    *of_point("test_samples", "samples_seen", "goodput", "attempts", "step_seconds", "cached_batch_seconds"),
    *of_point("no_sync_seconds", "data_stall_seconds", "exposed_communication_seconds", "startup_seconds"),
    *of_point("first_step_seconds", "first_block_seconds", "staleness_mean", "staleness_max"),
    *of_point("marks", "notes", "oversubscribed", "reasons", "run_ids"),
)
SEVERAL = ("marks", "run_ids", "reference_run_ids")  # columns with several values
DAMAGE = table(
    Column("run_id", TEXT, "name of the run's folder in runs/", optional=False),
    Column("file", TEXT, "path of the file within that folder", optional=False),
    Column("kind", TEXT, "as docs/run-directory.md names it, such as 'torn line'", optional=False),
    Column("count", COUNT, "number of lines or occurrences", optional=False, least=1),
    Column("sentence", TEXT, "the comparison as a sentence", optional=False),
)


def csv_of(findings: Findings) -> dict[str, bytes]:
    """Return the tables by file name."""
    return {name: text.encode("utf-8") for name, text in csv_tables(findings).items()}


def csv_tables(findings: Findings) -> dict[str, str]:
    """Return CSV by file name. Units are in the column names; marks and reasons are joined by ';', absent values are
    empty."""
    tables = {
        "scaling.csv": csv_text([point.row() for point in findings.points], SCALING),
        "breakdown.csv": csv_text([breakdown_row(loss) for loss in findings.losses.points], losses.COLUMNS),
        "comparisons.csv": csv_text(findings.comparisons.rows, comparisons.COLUMNS),
        "decisions.csv": csv_text(findings.decisions, decisions.COLUMNS),
        "learning.csv": csv_text(findings.learning.rows, learning.COLUMNS),
        "resources.csv": csv_text(findings.resources, resources.COLUMNS),
        "equal_work.csv": csv_text(findings.work.rows, equal_work.COLUMNS),
    }
    if findings.startup:
        tables["startup.csv"] = csv_text(findings.startup, startup.COLUMNS)
    if findings.study.damage:
        tables["damage.csv"] = csv_text(findings.study.damage, DAMAGE)
    if findings.roofline:
        tables["roofline.csv"] = csv_text(findings.roofline, roofline.COLUMNS)
    return tables | ({"data.csv": csv_text(findings.prices, data_price.COLUMNS)} if findings.prices else {})


def csv_text(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Column]) -> str:
    """Format as CSV, one line per row."""
    kinds = {name: column.kind for name, column in columns.items()}
    return csv_of_frame(frame_of([_cells(row) for row in rows], kinds), columns)


def _cells(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row with the columns of its point, if any, and with several values joined into one text."""
    cells = {**row["point"].row(), **row} if "point" in row else dict(row)
    return cells | {name: ";".join(cells[name]) or None for name in SEVERAL if isinstance(cells.get(name), tuple)}
