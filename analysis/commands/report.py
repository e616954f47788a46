"""`python -m analysis results/<study>`: read a study, write its report, print a summary."""

from __future__ import annotations

import argparse
import gc
import sys
from contextlib import nullcontext
from pathlib import Path

from analysis.base.errors import StudyError
from analysis.commands.sources import declare_reading, output_folder, study_of
from analysis.report.outputs import OUTPUTS, documents_of, kinds_of
from analysis.report.print.paper import declare_paper, paper_of


def declare(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Reads every run of a study, failed and unfinished ones too, prints a summary, writes its report."
    )
    parser.add_argument("study", type=Path, help="folder of the study, such as results/<study>, or a table or logs")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder to write to (default: the study's own)")
    parser.add_argument(
        "--target-accuracy",
        type=float,
        metavar="FRACTION",
        help="what it took to reach this test accuracy, such as 0.6 (default: what the study's command asked for)",
    )
    parser.add_argument(
        "--series",
        action="append",
        default=[],
        metavar="WORDS",
        help="show only series with these words in their name or configuration, such as 'pytorch allreduce'; may be "
        "repeated",
    )
    parser.add_argument(
        "--labels",
        type=Path,
        metavar="FILE.yaml",
        help="labels, colours and order of series (docs/report.md); the study's labels.yaml is used by itself",
    )
    parser.add_argument(
        "--only",
        metavar="KIND,...",
        help="write only these (default: all): " + "; ".join(f"{kind}: {what}" for kind, (*_, what) in OUTPUTS.items()),
    )
    declare_paper(parser)
    declare_reading(parser)
    parser.add_argument("--full", action="store_true", help="print every table and every path, not a summary alone")


def run(options: argparse.Namespace) -> int:
    """Run the command. Raises StudyError for errors the user can fix."""
    from analysis.report.print.drawing import beside

    gc.set_threshold(1_000_000)  # most of what a report makes, beginning with what it imports, stays to its end
    target = options.target_accuracy
    out = output_folder(options.study, options.out)
    kinds = kinds_of(options.only)
    if target is not None and not 0 < target < 1:
        raise StudyError(f"--target-accuracy {target:g}: give a fraction between 0 and 1, such as 0.6 for 60 %")
    paper = paper_of(options)
    with beside() if "figures" in kinds else nullcontext():
        # The processes for figures start while these are imported.
        from analysis.base.files import prepare_folder, write_files
        from analysis.report.findings import findings_of
        from analysis.report.series_choice import choice_of
        from analysis.report.terminal.summary import print_summary
        from analysis.report.terminal.tables import terminal

        study = study_of(options.study, options)
        prepare_folder(out)
        findings = findings_of(study, target, choice_of(options.study, options.labels, options.series))
        written = write_files(out, documents_of(findings, kinds, paper))
    print_summary(terminal(sys.stdout), findings, written, options.full)
    return 0
