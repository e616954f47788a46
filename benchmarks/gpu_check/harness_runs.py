"""Runs `python -m harness` as a user would, with one rank and with two ranks on the same device, and checks the logs.

Needs Hydra and submitit, which --wheels may provide.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.figures import Figure
from benchmarks.gpu_check.sections import Ask, Report, Skipped
from harness.core.events import COMPLETED, attempt_dirs, read_events, read_result

NEEDED = {"hydra": "hydra-core", "omegaconf": "omegaconf", "antlr4": "antlr4-python3-runtime", "yaml": "PyYAML"}
NEEDED |= {"packaging": "packaging", "submitit": "submitit", "cloudpickle": "cloudpickle", "rich": "rich"}
OLDEST_PYTHON = (3, 11)
RANKS = (1, 2)


def run(ask: Ask, report: Report) -> None:
    needs_hydra()
    batch = ("batch=8", "dataset.image_size=8") if ask.reduced else ("batch=128",)
    for ranks in RANKS:
        study = f"ranks{ranks}"
        done = subprocess.run(
            [
                *(sys.executable, "-m", "harness", f"study={study}", f"gpus={ranks}", "cluster=local"),
                *(f"cluster.device={ask.device}", f"framework.environment={sys.executable}", "strategy=allreduce"),
                *("model=resnet20", "dataset=synthetic", "scaling=weak", "measure=smoke", *batch),
                *("dataset.train_samples=512", "dataset.test_samples=64"),
            ],
            cwd=ask.scratch,
            capture_output=True,
            text=True,
        )
        name = f"{ranks} rank{'s' * (ranks > 1)}"
        if done.returncode:
            said = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()
            report(Figure(f"{name}, run", f"exit code {done.returncode}: {said[-1]}", bound=f"= {COMPLETED}"))
            continue
        [run_dir] = (ask.scratch / "results" / study / "runs").iterdir()
        one(ask, report, name, run_dir, ranks)


def one(ask: Ask, report: Report, name: str, run_dir: Path, ranks: int) -> None:
    result = read_result(run_dir)
    assert result is not None, f"{run_dir} has no result"
    report(Figure(f"{name}, run", result["status"], bound=f"= {COMPLETED}"))
    logs = [
        {event["ev"]: event for event in read_events(attempt_dirs(run_dir)[-1] / f"events.rank{rank}.jsonl").events}
        for rank in range(ranks)
    ]
    start = logs[0]["start"]
    alone = "= gloo" if ask.reduced else "= nccl"
    report(Figure(f"{name}, gradients carried by", start["communication"], bound=alone if ranks == 1 else None))
    report(Figure(f"{name}, device", start["device"], bound=f"= {ask.device}"))
    report(Figure(f"{name}, world size", start["world_size"], bound=f"= {ranks}"))
    sums = [log["end"]["weights_checksum"] for log in logs]
    report(Figure(f"{name}, weights of the ranks apart", max(sums) - min(sums), bound="= 0"))
    steps = _last_block(logs)
    report(Figure(f"{name}, last block", steps, "images/s"))


def needs_hydra() -> None:
    """Raise Skipped if the harness's command cannot run in this interpreter."""
    if sys.version_info < OLDEST_PYTHON:
        raise Skipped(f"python -m harness needs Python 3.11 or newer, this is {sys.version.split()[0]}")
    lacking = [package for module, package in NEEDED.items() if importlib.util.find_spec(module) is None]
    if lacking:
        raise Skipped(f"no {', '.join(lacking)} here; put wheels of them into a folder and name it with --wheels")


def _last_block(logs: list[dict[str, Any]]) -> float:
    """Samples per second over all ranks, from the slowest."""
    return sum(log["steps"]["samples"] for log in logs) / max(log["steps"]["seconds"] for log in logs)
