"""What commands start from: a study as read, its points, and the series that predictions are made of."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.base.errors import StudyError

if TYPE_CHECKING:
    from analysis.read.study import Study
    from analysis.scaling.request import Request
    from analysis.scaling.study_series import StudySeries


def study_of(folder: Path, program: str) -> Study:
    """The study in a folder; what there is to remark on its reading goes to stderr."""
    from analysis.read.study import read_study

    study = read_study(folder)
    for remark in study.remarks:
        print(f"{program}: {remark}", file=sys.stderr)
    return study


def points_of_study(folder: Path, program: str) -> tuple[Study, list[dict[str, Any]]]:
    """The study in a folder, and its points."""
    from analysis.measures.equal_work import equal_work
    from analysis.measures.speedup import points_of

    study = study_of(folder, program)
    return study, points_of(study.runs, equal_work(study.folder, study.runs).differing)


def series_of(folder: Path, request: Request, program: str) -> tuple[Study, list[StudySeries]]:
    """The study, and its series on the cluster that is asked for. StudyError where there are none."""
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
