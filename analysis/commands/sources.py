"""Inputs shared by commands: a study, its points, and the series used for predictions."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.base.errors import StudyError
from harness.core.run_files import STUDY

if TYPE_CHECKING:
    from analysis.read.imported_columns import Reading
    from analysis.read.study import Study
    from analysis.scaling.request import Request
    from analysis.scaling.study_series import StudySeries
    from analysis.tables.point import Point


READING = ("pattern", "file_name", "batch", "batch_per_gpu", "gpus_per_node", "series_columns", "ignore_columns")


def declare_reading(parser: argparse.ArgumentParser) -> None:
    """Add how tables and logs are read (docs/imported.md)."""
    group = parser.add_argument_group("tables and logs of your own (docs/imported.md)")
    group.add_argument(
        "--pattern", default="", metavar="PRESET|REGEX", help="of the steps in a folder of logs, such as megatron"
    )
    group.add_argument(
        "--file-name",
        default="",
        metavar="REGEX",
        help="over a log's name, its groups are columns: '(?P<gpus>\\d+)gpu'",
    )
    group.add_argument(
        "--batch", type=float, metavar="N", help="samples (or tokens) of a step over all GPUs, if not stated"
    )
    group.add_argument("--batch-per-gpu", type=float, metavar="N", help="the same of one GPU")
    group.add_argument("--gpus-per-node", type=int, metavar="N", help="if neither it nor the nodes are stated")
    group.add_argument("--series-columns", metavar="NAME,...", help="columns that tell series apart, in any case")
    group.add_argument("--ignore-columns", metavar="NAME,...", help="columns that are not read")


def study_of(folder: Path, options: argparse.Namespace) -> Study:
    """Read a study, or a table or logs from elsewhere; remarks about reading it go to stderr."""
    from analysis.read.imported import is_imported, read_imported
    from analysis.read.study import read_study

    reading = _reading(options)
    paths = [path for name in ("study", "first", "second") if (path := getattr(options, name, None)) is not None]
    given = [f"--{name.replace('_', '-')}" for name in READING if getattr(options, name, None)]
    if given and not any(is_imported(path, reading) for path in paths):
        raise StudyError(f"{given[0]} is for tables and logs of your own; {folder} is a study or does not exist")
    study = read_imported(folder, reading) if is_imported(folder, reading) else read_study(folder)
    for remark in study.remarks:
        print(f"{options.program}: {remark}", file=sys.stderr)
    return study


def _reading(options: argparse.Namespace) -> Reading:
    from analysis.read.imported_columns import Reading

    def names(option: str) -> tuple[str, ...]:
        return tuple(filter(None, (getattr(options, option, None) or "").split(",")))

    for option in ("batch", "batch_per_gpu", "gpus_per_node"):
        value = getattr(options, option, None)
        if value is not None and not 0 < value < 1e15:
            raise StudyError(f"--{option.replace('_', '-')} {value:g}: give a number above 0")
    given = {name: value for name in READING[:5] if (value := getattr(options, name, None))}
    return Reading(**given, series=names("series_columns"), ignore=names("ignore_columns"))


def output_folder(path: Path, out: Path | None) -> Path:
    """Return the user's folder, else the study's own, or for a table a folder beside it."""
    if out is not None:
        return out
    return path if (path / STUDY).is_file() else path.with_name(f"{path.stem}_report")


def points_of_study(folder: Path, options: argparse.Namespace) -> tuple[Study, list[Point]]:
    """Read a study; return it with its points."""
    from analysis.measures.equal_work import equal_work
    from analysis.measures.speedup import points_of

    study = study_of(folder, options)
    return study, points_of(study.runs, equal_work(study.folder, study.runs).differing)


def series_of(folder: Path, request: Request, options: argparse.Namespace) -> tuple[Study, list[StudySeries]]:
    """Read a study; return it with its series on the requested cluster. Raises StudyError if there are none."""
    from analysis.scaling.study_series import study_series

    study, points = points_of_study(folder, options)
    sources = study_series(points)
    clusters = sorted({source.cluster for source in sources})
    if request.cluster is not None and request.cluster not in clusters:
        raise StudyError(
            f"cluster={request.cluster}: this study measured nothing there, only on {', '.join(clusters)}; a series is "
            "predicted from measurements on its own machine"
        )
    return study, [source for source in sources if request.cluster in (None, source.cluster)]
