"""A study's findings as CSV: a table of each kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis.comparisons import comparisons_csv
from analysis.damage_table import damage_csv
from analysis.data_price import data_csv
from analysis.decisions import decisions_csv
from analysis.equal_work import equal_work_csv
from analysis.exports.cells import inert_csv
from analysis.learning import learning_csv
from analysis.loss_tables import breakdown_csv
from analysis.resources import resources_csv
from analysis.roofline_table import roofline_csv
from analysis.startup_table import startup_csv

if TYPE_CHECKING:
    import pandas as pd

    from analysis.findings import Findings

CSV_COLUMNS = [
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


def csv_of(findings: Findings) -> dict[str, bytes]:
    """The tables by the names of their files; what a spreadsheet would run has an apostrophe before it."""
    return {name: inert_csv(text).encode("utf-8") for name, text in csv_tables(findings).items()}


def csv_tables(findings: Findings) -> dict[str, str]:
    """CSV by the names of their files."""
    tables = {
        "scaling.csv": scaling_csv(findings.points),
        "breakdown.csv": breakdown_csv(findings.losses),
        "comparisons.csv": comparisons_csv(findings.comparisons),
        "decisions.csv": decisions_csv(findings.decisions),
        "learning.csv": learning_csv(findings.learning),
        "resources.csv": resources_csv(findings.resources),
        "equal_work.csv": equal_work_csv(findings.work),
    }
    if findings.startup:
        tables["startup.csv"] = startup_csv(findings.startup)
    if findings.study.damage:
        tables["damage.csv"] = damage_csv(findings.study.damage)
    if findings.roofline:
        tables["roofline.csv"] = roofline_csv(findings.roofline)
    return tables | ({"data.csv": data_csv(findings.prices)} if findings.prices else {})


def scaling_csv(points: pd.DataFrame) -> str:
    """The points with units in the names of the columns; marks are joined by ';', absent values are empty."""
    return points[CSV_COLUMNS].to_csv(index=False, lineterminator="\n")
