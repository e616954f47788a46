"""Pages of studies."""

from __future__ import annotations

from pathlib import Path

from analysis.read.study import read_study
from analysis.report.findings import findings_of
from analysis.report.html.render import render_report


def written(folder: Path, study: Path) -> Path:
    """Write the page of a study to `folder`."""
    path = folder / "report.html"
    path.write_text(render_report(findings_of(read_study(study))), encoding="utf-8")
    return path
