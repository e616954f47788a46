"""`python -m analysis next results/<study> gpus=64`: suggest which sizes to measure next."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from analysis.base.errors import StudyError
from analysis.base.settings import settings_of
from analysis.commands.sources import declare_reading, series_of
from analysis.scaling.request import SETTINGS, request_of

KEYS = ("gpus", "cluster", "gpus_per_node", "bandwidth_gbit")


def declare(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Says which sizes' measurement would narrow the prediction of a target most per node-hour, with "
        "ready command lines (docs/prediction.md)."
    )
    keys = "; ".join(f"{key}=: {SETTINGS[key]}" for key in KEYS[1:])
    parser.epilog = f"settings: gpus=: the target, one number; {keys}"
    parser.add_argument("study", type=Path, help="folder of the study, such as results/<study>, or a table or logs")
    parser.add_argument("settings", nargs="+", metavar="name=value", help="gpus=64 and others, see below")
    declare_reading(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Print which sizes to measure next. Raises StudyError for errors the user can fix."""
    from analysis.report.terminal.next_size import command_of, next_json, print_next
    from analysis.report.terminal.tables import terminal
    from analysis.scaling.next_size import next_sizes

    settings_of(options.settings, KEYS)  # a subset of the prediction's settings
    request = request_of(options.settings)
    if len(request.gpus) > 1:
        raise StudyError("gpus=: give one target, such as gpus=64: what narrows one prediction most may not another")
    study, sources = series_of(options.study, request, options)
    (target,) = request.gpus
    found = [next_sizes(each, target, request.gpus_per_node, request.bytes_per_second) for each in sources]
    commands = [[command_of(each, one, study.invocations) for each in one.candidates] for one in found]
    if options.json:
        print(json.dumps(next_json(study.name, found, commands), indent=1, allow_nan=False))
    else:
        print_next(terminal(sys.stdout), study.name, found, commands)
    return 0
