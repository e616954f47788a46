"""`python -m analysis results/<study>`: the report of a study, from whatever of it is there.

`python -m analysis <command> ...` does what COMMANDS names; a study's folder of such a name is given as ./<name>.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path

from analysis.errors import StudyError
from analysis.outputs import OUTPUTS, documents_of, kinds_of
from analysis.text import encodable

# Each is a module of analysis/commands with a function main(arguments), which returns the exit code or raises StudyError.
COMMANDS = {
    "backtest": "how well the scaling laws predict a table of measurements",
    "compare": "two studies: what became faster, what slower",
    "estimate": "throughput from nominal figures, before anything has run",
    "export": "the runs for MLPerf's tools, TensorBoard or MLflow",
    "next": "which sizes to measure next",
    "predict": "throughput and cost of sizes that were not measured",
    "proposal": "the scaling section of a proposal for computing time",
    "serve": "studies as they run, in a browser",
    "simulate": "many more GPUs than were measured, and runs that fail",
}

MODULES = {"next": "suggest"}  # where the name is another


def main(arguments: list[str] | None = None) -> int:
    """Reads the study, writes its report and prints its table.

    Returns the exit code: 0 when a report was made, also where runs failed (the report names them); 2 for what the
    user can put right, said in one sentence on stderr.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] in COMMANDS:
        return _command(arguments[0], arguments[1:])
    options = _parser().parse_args(arguments)
    try:
        _analyse(options)
    except StudyError as error:
        print(f"python -m analysis: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough; the files are written
        _silence()
    return 0


def _command(name: str, arguments: list[str]) -> int:
    encodable(sys.stdout)
    try:
        return importlib.import_module(f"analysis.commands.{MODULES.get(name, name)}").main(arguments)
    except StudyError as error:
        print(f"python -m analysis {name}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        _silence()
        return 0


def _silence() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m analysis",
        description="Reads every run of a study, failed and unfinished ones too, prints a summary, writes its report.",
        epilog="other commands, each with its own --help: "
        + "; ".join(f"`python -m analysis {name}`: {what}" for name, what in COMMANDS.items()),
    )
    parser.add_argument("study", type=Path, help="folder of the study, such as results/<study>")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder to write to (default: the study's own)")
    parser.add_argument(
        "--target-accuracy",
        type=float,
        metavar="FRACTION",
        help="what it took to reach this test accuracy, such as 0.6 (default: what the study's command asked for)",
    )
    parser.add_argument(
        "--only",
        metavar="KIND,...",
        help="write only these (default: all): " + "; ".join(f"{kind}: {what}" for kind, (*_, what) in OUTPUTS.items()),
    )
    parser.add_argument("--full", action="store_true", help="print every table and every path, not a summary alone")
    return parser


def _analyse(options: argparse.Namespace) -> None:
    from analysis.findings import findings_of
    from analysis.output import prepare_folder, write_files
    from analysis.read import read_study
    from analysis.tables import terminal
    from analysis.terminal import print_summary

    target = options.target_accuracy
    out = options.study if options.out is None else options.out
    kinds = kinds_of(options.only)
    if target is not None and not 0 < target < 1:
        raise StudyError(f"--target-accuracy {target:g}: give a fraction between 0 and 1, such as 0.6 for 60 %")
    study = read_study(options.study)
    prepare_folder(out)
    for remark in study.remarks:
        print(f"python -m analysis: {remark}", file=sys.stderr)
    findings = findings_of(study, target)
    written = write_files(out, documents_of(findings, kinds))
    encodable(sys.stdout)
    print_summary(terminal(sys.stdout), findings, written, options.full)


if __name__ == "__main__":
    sys.exit(main())
