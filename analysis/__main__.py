"""`python -m analysis results/<study>`: the report of a study, from whatever of it is there."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # pandas is imported only when there is something to read: --help stays quick
    import pandas as pd

    from analysis.equal_work import EqualWork
    from analysis.learning import Learning
    from analysis.read import Study


def main(arguments: list[str] | None = None) -> int:
    """Reads the study, writes its report and prints its table.

    Returns the exit code: 0 when a report was made, also where runs failed (the report names them); 2 for what the
    user can put right, said in one sentence on stderr.
    """
    options = _parser().parse_args(arguments)

    from analysis.errors import StudyError

    try:
        _analyse(options.study, options.out if options.out is not None else options.study, options.target_accuracy)
    except StudyError as error:
        print(f"python -m analysis: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough; the files are written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m analysis",
        description="Reads every run of a study, failed and unfinished ones too, prints its table and writes "
        "report.html, scaling.csv, learning.csv, equal_work.csv, and its figures as .svg and .png.",
    )
    parser.add_argument("study", type=Path, help="folder of the study, such as results/<study>")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder to write to (default: the study's own)")
    parser.add_argument(
        "--target-accuracy",
        type=float,
        metavar="FRACTION",
        help="what it took to reach this test accuracy, such as 0.6 (default: what the study's command asked for)",
    )
    return parser


def _analyse(folder: Path, out: Path, target: float | None) -> None:
    from analysis.equal_work import equal_work
    from analysis.errors import StudyError
    from analysis.learning import learning_of
    from analysis.output import prepare_folder, write_files
    from analysis.points import points_of
    from analysis.read import read_study

    if target is not None and not 0 < target < 1:
        raise StudyError(f"--target-accuracy {target:g}: give a fraction between 0 and 1, such as 0.6 for 60 %")
    study = read_study(folder)
    prepare_folder(out)
    for remark in study.remarks:
        print(f"python -m analysis: {remark}", file=sys.stderr)
    work = equal_work(study.folder, study.runs)
    points = points_of(study.runs, work.differing)
    learning = learning_of(study.runs, points, study.target_accuracy if target is None else target)
    written = write_files(out, _documents(study, points, work, learning))
    _print(study, points, work, learning, written)


def _documents(study: Study, points: pd.DataFrame, work: EqualWork, learning: Learning) -> dict[str, bytes]:
    from analysis.curves import draw_curves
    from analysis.equal_work import equal_work_csv
    from analysis.figures import draw_figures
    from analysis.learning import learning_csv
    from analysis.report import render_report
    from analysis.tables import scaling_csv

    figures = {**draw_figures(points), **draw_curves(learning)}
    documents = {
        "report.html": render_report(study, points, work, learning, figures),
        "scaling.csv": scaling_csv(points),
        "learning.csv": learning_csv(learning),
        "equal_work.csv": equal_work_csv(work),
    }
    return {**{name: text.encode("utf-8") for name, text in documents.items()}, **figures}


def _print(study: Study, points: pd.DataFrame, work: EqualWork, learning: Learning, written: list[Path]) -> None:
    from analysis.tables import print_tables, terminal

    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a terminal without the en dash shows '?', and no traceback
    print_tables(terminal(sys.stdout), study, points, work, learning)
    print("written:")
    for path in written:
        print(f"  {path}")


if __name__ == "__main__":
    sys.exit(main())
