"""Runs commands of the harness and the analysis as on a fixed machine: the time is constant, and there are 4 cores.

    python golden_commands.py < commands.json

stdin: a JSON list of [file to write, module, arguments]. Each command runs in its own process, forked from one that has
imported the programs' dependencies, so that a hundred of them take seconds. Nothing of the project is imported by name,
since only the commands must stay stable.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import shlex
import sys
import tempfile
import time
import traceback
from pathlib import Path

NOW = 1_800_000_000.0
CORES = 4
DEPENDENCIES = (
    "pandas",
    "pyarrow.parquet",
    "scipy.special",
    "scipy.optimize",
    "altair",
    "jinja2",
    "hydra",
    "rich.table",
)


def main() -> None:
    commands = json.load(sys.stdin)
    gc.disable()
    for name in DEPENDENCIES:
        importlib.import_module(name)
    gc.freeze()  # forked processes need not scan it
    gc.enable()
    for path, module, arguments in commands:
        _run(Path(path), module, arguments)


def _run(path: Path, module: str, arguments: list[str]) -> None:
    """Run a command and write it with its stdout, stderr and exit code."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        child = os.fork()
        if child == 0:
            os.dup2(stdout.fileno(), 1)
            os.dup2(stderr.fileno(), 2)
            _become(module, arguments)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        printed = []
        for file in (stdout, stderr):
            file.seek(0)
            printed.append(file.read().decode())
    parts = [f"$ {shlex.join(['python', '-m', module, *arguments])}\n", printed[0]]
    if printed[1]:
        parts += ["--- stderr ---\n", printed[1]]
    if code:
        parts.append(f"--- exit code {code} ---\n")
    path.write_text("".join(parts), encoding="utf-8")


def _become(module: str, arguments: list[str]) -> None:
    """Turn the forked process into `python -m module arguments`. Does not return."""
    code: object = 0
    try:
        time.time = lambda: NOW
        time.time_ns = lambda: int(NOW * 1e9)
        os.cpu_count = lambda: CORES
        os.sched_getaffinity = lambda _: set(range(CORES))
        sys.argv[1:] = arguments
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as exit_:
        code = exit_.code
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    main()
