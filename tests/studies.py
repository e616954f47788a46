"""Starts studies as a user does, on this machine or the tests' Slurm cluster, and inspects their files."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from project import PROJECT

from harness.core import events

SMALL = (
    "cluster.device=cpu", "model=resnet20", "dataset=synthetic", "batch=4", "measure=smoke",
    "measure.evaluate_samples=64",
)  # fmt: skip
# For tests of what surrounds the training: probes take longer than its steps.
UNPROBED = (*SMALL, "measure.probe_steps=0")
# For those that need no training either: a rank starts in half the time, and then mostly waits. Put after SMALL.
EMULATED = ("framework=emulated", "measure.evaluate_samples=0")


@contextlib.contextmanager
def started(
    folder: Path, *arguments: str, env: Mapping[str, str] | None = None, module: str = "harness"
) -> Iterator[subprocess.Popen[str]]:
    """Start the harness as a process in its own session, like a terminal's; kill it and its local children
    afterwards."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=folder,
        env={**(os.environ if env is None else env), "PYTHONPATH": str(PROJECT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def printed_until(process: subprocess.Popen[str], text: str) -> str:
    """Return the process's output up to the line with the text. Raises AssertionError if it ends before."""
    assert process.stdout is not None
    printed = ""
    while text not in printed:
        line = process.stdout.readline()
        assert line, printed
        printed += line
    return printed


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def described(folder: Path, **keys: Any) -> tuple[str, ...]:
    """Describe a machine in the user's own folder as in docs/sites.md, and return the arguments for it."""
    (folder / "site" / "cluster").mkdir(parents=True)
    description = {"name": "mine", "scheduler": "slurm", "device": "cpu", "gpus_per_node": 4, "gres": "gpu", **keys}
    (folder / "site" / "cluster" / "mine.yaml").write_text(yaml.safe_dump(description, allow_unicode=True))
    return ("--config-dir", "site", "cluster=mine")


def study_dir(folder: Path, study: str = "scaling") -> Path:
    return folder / "results" / study


def run_dirs(folder: Path, study: str = "scaling") -> list[Path]:
    return sorted((study_dir(folder, study) / "runs").iterdir())


def run_of(folder: Path, gpus: int, seed: int = 0) -> Path:
    specs = {run_dir: read_json(run_dir / "spec.json")["spec"] for run_dir in run_dirs(folder)}
    (found,) = [run_dir for run_dir, spec in specs.items() if (spec["gpus"], spec["seed"]) == (gpus, seed)]
    return found


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def logged(run_dir: Path, kind: str, attempt: int = 1, rank: int = 0) -> list[dict[str, Any]]:
    """Return the rank's events of a kind; empty if there is no log yet."""
    path = run_dir / f"attempt-{attempt}" / f"events.rank{rank}.jsonl"
    return [e for e in events.read_events(path).events if e["ev"] == kind] if path.exists() else []


def steps_done(folder: Path, gpus: int = 1, attempt: int = 1, rank: int = 0) -> int:
    """Return the steps that the attempt has done in the most advanced run on this many GPUs; 0 if there is none."""
    runs = folder.glob(f"results/*/runs/*-{gpus}gpu-*")
    blocks = [block for run_dir in runs for block in logged(run_dir, "steps", attempt, rank)]
    return max((block["step"] + block["n"] for block in blocks), default=0)


def starts(run_dir: Path, attempt: int = 1) -> list[dict[str, Any]]:
    """Return the start event of each rank, in order."""
    ranks = read_json(run_dir / "spec.json")["spec"]["gpus"]
    return [logged(run_dir, "start", attempt, rank)[0] for rank in range(ranks)]


def hosts(run_dir: Path, attempt: int = 1) -> list[str]:
    """Return the host of each rank, in order."""
    return [start["host"] for start in starts(run_dir, attempt)]


def losses(run_dir: Path) -> dict[tuple[int, int], float]:
    """Return (rank, steps done) -> loss of the rank's last batch at the end of each block; later attempts win.

    The first step of an attempt, which is logged separately, ends no block unless blocks have one step."""
    spec = read_json(run_dir / "spec.json")["spec"]
    found = {}
    for number in range(1, len(events.attempt_dirs(run_dir)) + 1):
        for rank in range(spec["gpus"]):
            for block in logged(run_dir, "steps", number, rank):
                if block["phase"] != "first" or block["n"] == spec["measure"]["block_steps"]:
                    found[rank, block["step"] + block["n"]] = block["loss"]
    return found


def failures(folder: Path) -> str:
    """Describe failed runs and their last output, for a test's output when its files are gone; empty if none failed."""
    runs: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for path in sorted(folder.glob("results/*/runs/**/result*.json")):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):  # some tests damage the files
            result = read_json(path)
            if result["status"] == "failed":
                same = (result["reason"], *result["stderr_tail"][-5:])
                runs[same].append(f"{result['run_id']}, attempt {result['attempt']}, job {result['job_id']}")
    lines = []
    for (reason, *last_words), which in sorted(runs.items(), key=lambda item: -len(item[1]))[:10]:
        lines += [
            f"{len(which)} x {reason}",
            *(f"  > {line}" for line in last_words),
            *(f"  {run}" for run in which[:5]),
        ]
    return "\n".join(lines)
