"""Files for other programs: kind `data` of analysis/report/outputs.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis.report.data.document import report_json
from analysis.report.data.runs import runs_csv, runs_parquet, runs_table

if TYPE_CHECKING:
    from analysis.report.findings import Findings


def data_of(findings: Findings) -> dict[str, bytes]:
    """Return runs.csv, runs.parquet and report.json."""
    table = runs_table(findings)
    return {
        "runs.csv": runs_csv(table),
        "runs.parquet": runs_parquet(table),
        "report.json": report_json(findings),
    }
