"""`python -m analysis predict results/<study> gpus=16,32,64`: predict throughput and cost of unmeasured sizes."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from analysis.commands.sources import declare_reading, series_of
from analysis.scaling.request import SETTINGS, request_of


def declare(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Predicts throughput, efficiency and cost on numbers of GPUs that were not measured, with 50 % "
        "and 90 % intervals, beside linear scaling and the last measured efficiency (docs/prediction.md)."
    )
    parser.epilog = "settings: " + "; ".join(f"{name}=: {what}" for name, what in SETTINGS.items())
    parser.add_argument("study", type=Path, help="folder of the study, such as results/<study>, or a table or logs")
    parser.add_argument("settings", nargs="+", metavar="name=value", help="gpus=16,32,64 and others, see below")
    declare_reading(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Print the predictions. Raises StudyError for errors the user can fix."""
    request = request_of(options.settings)

    from analysis.report.terminal.prediction import predictions_json, print_predictions
    from analysis.report.terminal.tables import terminal
    from analysis.scaling.budget import sizes_to_consider
    from analysis.scaling.prediction import predict_series

    study, sources = series_of(options.study, request, options)
    predictions = []
    for source in sources:
        gpus = request.gpus or sizes_to_consider(source, request.gpus_per_node)
        predictions.append(predict_series(source, gpus, request.gpus_per_node, request.bytes_per_second))
    if options.json:
        print(json.dumps(predictions_json(study.name, predictions, request), indent=1, allow_nan=False))
    else:
        print_predictions(terminal(sys.stdout), study.name, predictions, request)
    return 0
