"""Studies as a user starts them, on this machine or on the Slurm of the tests, and a look at their files."""

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


@contextlib.contextmanager
def started(
    folder: Path, *arguments: str, env: Mapping[str, str] | None = None, module: str = "harness"
) -> Iterator[subprocess.Popen[str]]:
    """The harness as a process, in a session of its own as that of a terminal; ended afterwards with what it started
    here."""
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
    """What the process prints, up to the line with the text. Raises AssertionError where it ends before."""
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
    """The arguments for a machine's description in a folder of the user's own, as docs/sites.md shows it."""
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
    """The rank's events of a kind; none while there is no log."""
    path = run_dir / f"attempt-{attempt}" / f"events.rank{rank}.jsonl"
    return [e for e in events.read_events(path).events if e["ev"] == kind] if path.exists() else []


def steps_done(folder: Path, gpus: int = 1, attempt: int = 1, rank: int = 0) -> int:
    """By the attempt, in whichever run of so many GPUs has done most; 0 while there is none."""
    runs = folder.glob(f"results/*/runs/*-{gpus}gpu-*")
    blocks = [block for run_dir in runs for block in logged(run_dir, "steps", attempt, rank)]
    return max((block["step"] + block["n"] for block in blocks), default=0)


def starts(run_dir: Path, attempt: int = 1) -> list[dict[str, Any]]:
    """How each rank started, in order."""
    ranks = read_json(run_dir / "spec.json")["spec"]["gpus"]
    return [logged(run_dir, "start", attempt, rank)[0] for rank in range(ranks)]


def hosts(run_dir: Path, attempt: int = 1) -> list[str]:
    """Of the ranks, in order."""
    return [start["host"] for start in starts(run_dir, attempt)]


def losses(run_dir: Path) -> dict[tuple[int, int], float]:
    """(rank, steps done) -> training loss of the rank's last batch at each end of a block; later attempts count.

    The first step of an attempt, which is logged apart, ends no block unless blocks are of one step."""
    spec = read_json(run_dir / "spec.json")["spec"]
    found = {}
    for number in range(1, len(events.attempt_dirs(run_dir)) + 1):
        for rank in range(spec["gpus"]):
            for block in logged(run_dir, "steps", number, rank):
                if block["phase"] != "first" or block["n"] == spec["measure"]["block_steps"]:
                    found[rank, block["step"] + block["n"]] = block["loss"]
    return found


def failures(folder: Path) -> str:
    """Why runs in the results there failed, with their last words: what the output of a test has to say when nobody can
    look at its files any more. Empty where none failed."""
    runs: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for path in sorted(folder.glob("results/*/runs/**/result*.json")):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):  # some tests damage it
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
