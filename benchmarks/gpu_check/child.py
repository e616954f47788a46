"""Runs one section in a process of its own.

    python -m benchmarks.gpu_check.child MODULE:FUNCTION REPORT DEVICE SECONDS SCRATCH DATA

Appends one JSON object per line to REPORT: {"figure": ...}, {"skipped": why}, {"no_gpu": why}.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def main(function: str, report: Path, device: str, seconds: float, scratch: Path, data: Path) -> None:
    from benchmarks.gpu_check.figures import Figure
    from benchmarks.gpu_check.sections import Ask, NoGpu, Skipped

    ask = Ask(device, time.monotonic() + seconds, scratch, data)
    with open(report, "a", encoding="utf-8", buffering=1) as file:

        def write(**line: Any) -> None:
            file.write(json.dumps(line) + "\n")

        def figure(made: Figure) -> None:
            write(figure=made.plain())

        try:
            module, _, name = function.partition(":")
            getattr(importlib.import_module(module), name)(ask, figure)
        except Skipped as why:
            write(skipped=str(why))
        except NoGpu as why:
            write(no_gpu=str(why))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], float(sys.argv[4]), Path(sys.argv[5]), Path(sys.argv[6]))
    sys.stdout.flush()
    os._exit(0)  # threads of pipelines and of gloo may still be running
