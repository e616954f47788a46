"""`python -m analysis compare A B`: command line of `analysis.measures.two_studies`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.base.errors import StudyError
from analysis.commands.sources import declare_reading, points_of_study
from analysis.report.print.paper import declare_paper, paper_of

if TYPE_CHECKING:
    from analysis.measures.two_studies import Comparison, Measured
    from analysis.report.print.paper import Paper


def declare(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Compares the throughput of every point that two studies share. Exit code 0: tested, nothing "
        "became worse; 1: something did, or no longer completes; 3: nothing could be tested, which takes two runs of a "
        "point in each study (repeats=2)."
    )
    parser.add_argument("first", type=Path, help="folder of the study to compare with, or a table")
    parser.add_argument("second", type=Path, help="folder of the study that is looked at, or a table")
    parser.add_argument(
        "--threshold",
        type=float,
        default=0.02,
        metavar="FRACTION",
        help="the least relative change of throughput that counts (default: %(default)s)",
    )
    parser.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="KEY",
        help="a key in which points may differ, such as optimizer.lr; may be repeated",
    )
    declare_reading(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="also draw both throughputs in one figure, there")
    declare_paper(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Print the comparison and return `Comparison.exit_code`. Raises StudyError for errors the user can fix."""
    from analysis.measures.two_studies import NOTE, compare, sentences

    if not 0 <= options.threshold < 1:
        raise StudyError(f"--threshold {options.threshold:g}: give a fraction from 0 to below 1, such as 0.02")
    first, second = (points_of_study(folder, options) for folder in (options.first, options.second))
    paper = paper_of(options)
    comparison = compare(first, second, options.threshold, options.ignore)
    if not comparison.pairs:
        own = any(point.is_own for _, points in (first, second) for point in points)
        alike = "number of GPUs and unit" if own else "framework, strategy, model, data set, batches and number of GPUs"
        raise StudyError(
            f"no point of {options.first} can be compared with one of {options.second}: of the same {alike}, measured "
            "in one way; "
            + "; ".join(comparison.only[:3])
            + ("; --ignore KEY compares points that differ in a key" if not own else "")
        )
    written = _draw(options.out, first, second, comparison, paper) if options.out else []
    if options.json:
        document = {"threshold": options.threshold, "exit_code": comparison.exit_code()}
        pairs = [pair.document() for pair in comparison.pairs]
        print(json.dumps(document | {"pairs": pairs, "only": comparison.only}, indent=1))
    else:
        print(f"{options.second} compared with {options.first}", *sentences(comparison, options.threshold), sep="\n")
        print(NOTE, *(["written:"] * bool(written)), *(f"  {path}" for path in written), sep="\n")
    return comparison.exit_code()


def _draw(out: Path, first: Measured, second: Measured, comparison: Comparison, paper: Paper) -> list[Path]:
    from analysis.base.files import prepare_folder, write_files
    from analysis.report.print.comparison import comparison_figures

    if comparison.unit is None:
        return []
    prepare_folder(out)
    return list(write_files(out, comparison_figures(first, second, comparison.unit, paper)))
