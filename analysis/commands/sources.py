"""Reads what a prediction starts from: the series of a study, for the commands that predict."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.errors import StudyError

if TYPE_CHECKING:
    from analysis.laws.request import Request
    from analysis.laws.study_series import StudySeries
    from analysis.read import Study


def read_sources(folder: Path, request: Request, command: str) -> tuple[Study, list[StudySeries]]:
    """The study, and its series on the cluster that is asked for. StudyError where there are none."""
    from analysis.equal_work import equal_work
    from analysis.laws.study_series import study_series
    from analysis.read import read_study
    from analysis.speedups import points_of

    study = read_study(folder)
    for remark in study.remarks:
        print(f"python -m analysis {command}: {remark}", file=sys.stderr)
    points = points_of(study.runs, equal_work(study.folder, study.runs).differing)
    sources = study_series(points, study.runs)
    clusters = sorted({source.cluster for source in sources})
    if request.cluster is not None and request.cluster not in clusters:
        raise StudyError(
            f"cluster={request.cluster}: this study measured nothing there, only on {', '.join(clusters)}; a series is "
            "predicted from measurements on its own machine"
        )
    return study, [source for source in sources if request.cluster in (None, source.cluster)]
