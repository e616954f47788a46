"""Starts studies on the tests' Slurm cluster as a user does; tests/studies.py inspects their files."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import studies
from processes import wait_for

# The nodes declare GPUs that do not exist: Slurm allocates them, the ranks compute on the CPU.
TRAINED = (*studies.UNPROBED, "cluster.cpus_per_gpu=1")
SHORT = (*TRAINED, *studies.EMULATED)
# Run for a minute or more unless stopped; the state is saved every few steps.
SAVING = ("measure.steps=400", "measure.block_steps=2", "checkpoint.interval_steps=20")
LONG_TRAINED = (*TRAINED, *SAVING)
LONG = (*SHORT, *SAVING, "framework.options.compute_ms=200")


@contextmanager
def started(slurm: Any, folder: Path, *arguments: str, module: str = "harness") -> Iterator[subprocess.Popen[str]]:
    """Start the harness as a process; it and its jobs are stopped afterwards."""
    try:
        with studies.started(folder, *arguments, env=slurm.env, module=module) as process:
            yield process
    finally:
        slurm.run("scancel", "--me")


def in_queue(slurm: Any) -> list[str]:
    return slurm.run("squeue", "--me", "--array", "--noheader", "--format=%i %T").stdout.splitlines()


def empty(slurm: Any) -> None:
    """Cancel all jobs and wait for their end."""
    slurm.run("scancel", "--me")
    # Slurm kills jobs after KillWait, and blames the node for a job that cannot be killed.
    wait_for(lambda: (asked := slurm.run("squeue", "--noheader")).returncode == 0 and not asked.stdout, 120)


def counting(tmp_path: Path, env: dict[str, str], *programs: str) -> tuple[dict[str, str], Path]:
    """Return an environment in which each call of these programs is first recorded with its first argument, and the
    file with the records."""
    folder, log = tmp_path / "counting", tmp_path / "calls"
    for name in programs:
        studies.program(folder / name, f'#!/bin/sh\necho {name} "$1" >> {log}\nexec {shutil.which(name)} "$@"\n')
    log.touch()
    return {**env, "PATH": f"{folder}:{env['PATH']}"}, log
