"""A study on the Slurm of the tests, as a user starts it; for a look at its files: tests/studies.py."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import studies

# The nodes declare GPUs that are not there: Slurm hands them out, the ranks compute on the CPU.
SHORT = (*studies.SMALL, "cluster.cpus_per_gpu=1")
# Goes on for minutes unless something ends it; its state is saved every few steps.
LONG = (*SHORT, "measure.steps=400", "measure.block_steps=2", "measure.probe_steps=0", "checkpoint.interval_steps=20")


@contextmanager
def started(slurm: Any, folder: Path, *arguments: str, module: str = "harness") -> Iterator[subprocess.Popen[str]]:
    """The harness as a process; whatever it and its jobs are doing is ended afterwards."""
    try:
        with studies.started(folder, *arguments, env=slurm.env, module=module) as process:
            yield process
    finally:
        slurm.run("scancel", "--me")


def in_queue(slurm: Any) -> list[str]:
    return slurm.run("squeue", "--me", "--array", "--noheader", "--format=%i %T").stdout.splitlines()


def counting(tmp_path: Path, env: dict[str, str], *programs: str) -> tuple[dict[str, str], Path]:
    """An environment where each call of the real programs is noted in a file first, with its first argument."""
    folder, log = tmp_path / "counting", tmp_path / "calls"
    for name in programs:
        studies.program(folder / name, f'#!/bin/sh\necho {name} "$1" >> {log}\nexec {shutil.which(name)} "$@"\n')
    log.touch()
    return {**env, "PATH": f"{folder}:{env['PATH']}"}, log
