"""Inputs shared by commands: a study, its points, and the series used for predictions."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.base.errors import StudyError
from harness.core.run_files import STUDY

if TYPE_CHECKING:
    from analysis.read.study import Study
    from analysis.scaling.request import Request
    from analysis.scaling.study_series import StudySeries
    from analysis.tables.point import Point


def study_of(folder: Path, program: str) -> Study:
    """Read a study, or a table from elsewhere; remarks about reading it go to stderr."""
    from analysis.read.imported import is_imported, read_imported
    from analysis.read.study import read_study

    study = read_imported(folder) if is_imported(folder) else read_study(folder)
    for remark in study.remarks:
        print(f"{program}: {remark}", file=sys.stderr)
    return study


def output_folder(path: Path, out: Path | None) -> Path:
    """Return the user's folder, else the study's own, or for a table a folder beside it."""
    if out is not None:
        return out
    return path if (path / STUDY).is_file() else path.with_name(f"{path.stem}_report")


def points_of_study(folder: Path, program: str) -> tuple[Study, list[Point]]:
    """Read a study; return it with its points."""
    from analysis.measures.equal_work import equal_work
    from analysis.measures.speedup import points_of

    study = study_of(folder, program)
    return study, points_of(study.runs, equal_work(study.folder, study.runs).differing)


def series_of(folder: Path, request: Request, program: str) -> tuple[Study, list[StudySeries]]:
    """Read a study; return it with its series on the requested cluster. Raises StudyError if there are none."""
    from analysis.scaling.study_series import study_series

    study, points = points_of_study(folder, program)
    sources = study_series(points)
    clusters = sorted({source.cluster for source in sources})
    if request.cluster is not None and request.cluster not in clusters:
        raise StudyError(
            f"cluster={request.cluster}: this study measured nothing there, only on {', '.join(clusters)}; a series is "
            "predicted from measurements on its own machine"
        )
    return study, [source for source in sources if request.cluster in (None, source.cluster)]
