"""`python -m analysis export results/<study> mlperf|tensorboard|mlflow`: export a study's runs."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.base.errors import StudyError
from analysis.commands.sources import declare_reading, output_folder, points_of_study

if TYPE_CHECKING:
    from collections.abc import Iterator

    from analysis.read.study import Study
    from analysis.report.data.history import ExportedRun

# Format: (package that writes it, extra that installs it, description). None: nothing is needed.
FORMATS: dict[str, tuple[str | None, str | None, str]] = {
    "mlperf": (None, None, "a file of :::MLLOG lines per run; no MLPerf result, and no submission"),
    "tensorboard": ("tensorboardX", "tensorboard", "a folder with an event file per run"),
    "mlflow": ("mlflow", "mlflow", "an experiment per study, with its runs"),
}


def declare(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Writes every run of a study, failed ones as failed, in the format of another program. Asked for "
        "again, it replaces what it had written (docs/exports.md)."
    )
    parser.epilog = "formats: " + "; ".join(f"{name}: {what}" for name, (*_, what) in FORMATS.items())
    parser.add_argument("study", type=Path, help="folder of the study, such as results/<study>, or a table or logs")
    parser.add_argument("format", metavar="|".join(FORMATS), help="what to write")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="folder to write to (default: exports/<format> in the study's)"
    )
    declare_reading(parser)
    parser.add_argument(
        "--tracking-uri", metavar="URI", help="mlflow only: a tracking server or store, in place of a folder"
    )


def run(options: argparse.Namespace) -> int:
    """Export the study and print where. Raises StudyError for errors the user can fix."""
    kind = options.format
    if kind not in FORMATS:
        raise StudyError(f"there is no format '{kind}'; there are {', '.join(FORMATS)}")
    uri = options.tracking_uri
    if uri is not None and kind != "mlflow":
        raise StudyError(f"--tracking-uri is for mlflow; {kind} is written to a folder: --out DIR")
    if uri is not None and options.out is not None:
        raise StudyError("--out and --tracking-uri are given; give one of them")
    _require(kind)

    from analysis.base.files import prepare_folder
    from analysis.read.study import statuses
    from analysis.report.data.history import exported_runs

    study, points = points_of_study(options.study, options)
    out = options.out or output_folder(options.study, None) / "exports" / kind
    if uri is None:
        prepare_folder(out)
    how = {"mlperf": _mlperf, "tensorboard": _tensorboard, "mlflow": _mlflow}[kind]
    where, note = how(study, exported_runs(study, points), out, uri)
    ended = ", ".join(f"{n} {status}" for status, n in sorted(statuses(study.runs).items()))
    print(f"{len(study.runs):,} runs ({ended}): {where}")
    print(note)
    return 0


def _require(kind: str) -> None:
    package, extra, _ = FORMATS[kind]
    if package is None:
        return
    try:
        importlib.import_module(package)
    except ImportError:
        raise StudyError(
            f"{kind} needs the package {package}, which is not installed: pip install 'scaling-harness[{extra}]'"
        ) from None


def _mlperf(study: Study, runs: Iterator[ExportedRun], out: Path, _: str | None) -> tuple[str, str]:
    from analysis.report.data.mllog import write_mllog

    for run in runs:
        write_mllog(study, run, out)
    return str(out), "These are no MLPerf results: benchmark, model and rules are the study's own."


def _tensorboard(study: Study, runs: Iterator[ExportedRun], out: Path, _: str | None) -> tuple[str, str]:
    from analysis.report.data.tensorboard import write_tensorboard

    for run in runs:
        write_tensorboard(run, out)
    return str(out), f"to look at it: tensorboard --logdir {out}"


def _mlflow(study: Study, runs: Iterator[ExportedRun], out: Path, uri: str | None) -> tuple[str, str]:
    from analysis.report.data.mlflow import Experiment

    where = out.resolve().as_uri() if uri is None else uri
    experiment = Experiment(where, study.name)
    written = sum(experiment.write(run) for run in runs)
    note = f"experiment '{study.name}': {written:,} written, {len(study.runs) - written:,} were there as they are"
    if uri is None:
        note += f"\nto look at it: MLFLOW_ALLOW_FILE_STORE=true mlflow ui --backend-store-uri {where}"
    return where, note
