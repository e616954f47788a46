"""`python -m analysis predict results/<study> gpus=16,32,64`: throughput and cost of sizes that were not measured."""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.errors import StudyError
from analysis.settings import settings_of

if TYPE_CHECKING:
    from analysis.laws.study_series import StudySeries
    from analysis.read import Study

MOST_GPUS = 10_000_000
SETTINGS = {
    "gpus": "numbers of GPUs to predict, such as 16,32,64",
    "cluster": "only the series measured on this cluster",
    "gpus_per_node": "GPUs of a node (default: as many as the study measured on one)",
    "bandwidth_gbit": "Gb/s between two nodes, for a study of one node",
    "samples": "samples to train on, for hours and GPU-hours",
    "epochs": "epochs to train, instead of samples",
    "budget_gpu_hours": "GPU-hours that may be spent on these samples or epochs",
}


@dataclass(frozen=True)
class Request:
    gpus: tuple[int, ...]
    cluster: str | None
    gpus_per_node: int | None
    bandwidth_gbit: float | None
    samples: float | None
    epochs: float | None
    budget_gpu_hours: float | None

    @property
    def bytes_per_second(self) -> float | None:
        return None if self.bandwidth_gbit is None else self.bandwidth_gbit * 1e9 / 8


def main(arguments: list[str]) -> int:
    """Prints what the study says of other sizes. Raises StudyError for what the user can put right."""
    options = _parser().parse_args(arguments)
    _predict(options.study, request_of(options.settings), options.json)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m analysis predict",
        description="Predicts throughput, efficiency and cost on numbers of GPUs that were not measured, with 50 %% "
        "and 90 %% intervals, beside linear scaling and the last measured efficiency (docs/prediction.md).",
        epilog="settings: " + "; ".join(f"{name}=: {what}" for name, what in SETTINGS.items()),
    )
    parser.add_argument("study", type=Path, help="folder of the study, such as results/<study>")
    parser.add_argument("settings", nargs="+", metavar="name=value", help="gpus=16,32,64 and others, see below")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def request_of(settings: list[str]) -> Request:
    """StudyError for a setting that is not known or has no such value."""
    values = settings_of(settings, SETTINGS)
    if "gpus" not in values:
        raise StudyError("which numbers of GPUs? Give them, such as gpus=16,32,64")
    if "samples" in values and "epochs" in values:
        raise StudyError("samples= and epochs= are given; give one of them")
    if "budget_gpu_hours" in values and not {"samples", "epochs"} & set(values):
        raise StudyError("budget_gpu_hours= is for a training of so many samples or epochs: give samples= or epochs=")
    per_node = _whole("gpus_per_node", values["gpus_per_node"]) if "gpus_per_node" in values else None
    return Request(
        tuple(dict.fromkeys(_whole("gpus", text) for text in values["gpus"].split(","))),
        values.get("cluster"),
        per_node,
        *(_positive(name, values.get(name)) for name in ("bandwidth_gbit", "samples", "epochs", "budget_gpu_hours")),
    )


def _predict(folder: Path, request: Request, as_json: bool) -> None:
    from analysis.laws.predict_text import predictions_json, print_predictions
    from analysis.laws.prediction import predict_series
    from analysis.tables import terminal

    study, sources = read_sources(folder, request, "predict")
    predictions = [
        predict_series(source, request.gpus, request.gpus_per_node, request.bytes_per_second) for source in sources
    ]
    if as_json:
        print(json.dumps(predictions_json(study.name, predictions, request), indent=1, allow_nan=False))
    else:
        print_predictions(terminal(sys.stdout), study.name, predictions, request)


def read_sources(folder: Path, request: Request, command: str) -> tuple[Study, list[StudySeries]]:
    """The study, and its series on the cluster that is asked for. StudyError where there are none."""
    from analysis.equal_work import equal_work
    from analysis.laws.study_series import study_series
    from analysis.points import points_of
    from analysis.read import read_study

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


def _whole(name: str, text: str) -> int:

    if not text.strip().isdecimal() or not 0 < int(text) <= MOST_GPUS:
        raise StudyError(f"{name}={text}: give whole numbers from 1 to {MOST_GPUS:,}")
    return int(text)


def _positive(name: str, text: str | None) -> float | None:

    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise StudyError(f"{name}={text}: give a number above 0")
    return value
