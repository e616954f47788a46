"""A study on the Slurm of the tests, as a user starts it, and a look at its files."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from project import PROJECT

from harness import events

# The nodes declare GPUs that are not there: Slurm hands them out, the ranks compute on the CPU.
SHORT = (
    "cluster.device=cpu", "cluster.cpus_per_gpu=1", "model=resnet20", "dataset=synthetic", "batch=4",
    "measure=smoke", "measure.evaluate_samples=64",
)  # fmt: skip
# Goes on for minutes unless something ends it; its state is saved every few steps.
LONG = (*SHORT, "measure.steps=400", "measure.block_steps=2", "measure.probe_steps=0", "checkpoint.interval_steps=20")


@contextmanager
def started(slurm: Any, tmp_path: Path, *arguments: str, module: str = "harness") -> Iterator[subprocess.Popen[str]]:
    """The harness as a process; whatever it and its jobs are doing is ended afterwards."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=tmp_path,
        env={**slurm.env, "PYTHONPATH": str(PROJECT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
        slurm.run("scancel", "--me")


def study_dir(tmp_path: Path) -> Path:
    return tmp_path / "results" / "scaling"


def run_dirs(tmp_path: Path) -> list[Path]:
    return sorted((study_dir(tmp_path) / "runs").iterdir())


def run_of(tmp_path: Path, gpus: int) -> Path:
    (found,) = [d for d in run_dirs(tmp_path) if read_json(d / "spec.json")["spec"]["gpus"] == gpus]
    return found


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def logged(run_dir: Path, kind: str, attempt: int = 1, rank: int = 0) -> list[dict[str, Any]]:
    """The rank's events of a kind; none while there is no log."""
    path = run_dir / f"attempt-{attempt}" / f"events.rank{rank}.jsonl"
    return [e for e in events.read_events(path).events if e["ev"] == kind] if path.exists() else []


def steps_done(tmp_path: Path, gpus: int = 1, attempt: int = 1, rank: int = 0) -> int:
    """By the attempt of the only run of so many GPUs; 0 while there is none."""
    found = list(tmp_path.glob(f"results/scaling/runs/*-{gpus}gpu-*"))
    blocks = logged(found[0], "steps", attempt, rank) if found else []
    return blocks[-1]["step"] + blocks[-1]["n"] if blocks else 0


def hosts(run_dir: Path, attempt: int = 1) -> list[str]:
    """Of the ranks, in order."""
    ranks = read_json(run_dir / "spec.json")["spec"]["gpus"]
    return [logged(run_dir, "start", attempt, rank)[0]["host"] for rank in range(ranks)]


def in_queue(slurm: Any) -> list[str]:
    return slurm.run("squeue", "--me", "--array", "--noheader", "--format=%i %T").stdout.splitlines()
