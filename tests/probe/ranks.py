"""Starts the ranks of a user's script as a supervisor does, without Slurm, and reads what the probe wrote."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jsonschema
from project import PROJECT

from analysis.read.log.rank import RankLog

PROBE = PROJECT / "harness" / "probe"
SCHEMA = json.loads((PROJECT / "harness" / "schemas" / "events.schema.json").read_text())
SCRIPTS = Path(__file__).parent / "scripts"
VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass
class Rank:
    """A rank that has ended. events: its log. times: what the script counted itself."""

    code: int
    stdout: str
    stderr: str
    events: list[dict[str, Any]]
    times: dict[str, list[Any]] | None

    def of(self, ev: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["ev"] == ev]

    def one(self, ev: str) -> dict[str, Any]:
        (event,) = self.of(ev)
        return event

    @property
    def measured(self) -> list[dict[str, Any]]:
        return [event for event in self.of("steps") if event["phase"] == "measure"]

    def script_seconds(self) -> float:
        """What the script counted for the training steps of all measured blocks but the last."""
        assert self.times is not None
        steps = range(self.measured[0]["step"], self.measured[-1]["step"])
        return sum(self.times["seconds"][k] for k in steps if not self.times["other"][k])


def run(
    folder: Path,
    python: Path,
    *command: str,
    world_size: int = 1,
    script: str = "train_once.py",
    expect: int = 0,
    runner: bool = True,
    told: str | None = None,
    prefixes: Sequence[Sequence[str]] = (),
    variables: Mapping[str, str] | None = None,
    **settings: Any,
) -> list[Rank]:
    """Run script and arguments on ranks of this machine until they end, each with the code `expect`.

    RANK in an argument is left for the script. script: in SCRIPTS. told: SCALING_PROBE, instead of the rank's file.
    prefixes: of each rank's command, which start it elsewhere. variables: of the environment, beyond RANK and such.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for rank in range(world_size):
        path = write_settings(folder, rank, world_size, **settings)
        values = (rank, rank, world_size, world_size, 0, "127.0.0.1", port)
        env = environment(told or str(path), **dict(zip(VARIABLES, map(str, values), strict=True)))
        env.update(variables or {})
        runs = [
            *(prefixes[rank] if prefixes else ()),
            str(python),
            "-u",
            *([str(PROBE / "scaling_probe_run.py")] if runner else []),
            str(SCRIPTS / script),
            *command,
        ]
        started.append(start(folder, runs, env))
    return [result(folder, rank, process, expect) for rank, process in enumerate(started)]


def run_launcher(folder: Path, path: Sequence[Path], *command: str, world_size: int) -> list[Rank]:
    """Run a launcher of the user's, which starts the ranks itself, with `path` on PYTHONPATH; all ranks have its
    output."""
    for rank in range(world_size):
        write_settings(folder, rank, world_size)
    env = environment(str(folder / "probe.rank{rank}.json"))
    env["PYTHONPATH"] = os.pathsep.join([env["PYTHONPATH"], *map(str, path)])
    process = start(folder, command, env)
    first = result(folder, 0, process, 0)
    return [replace(first, events=read_events(folder, rank)) for rank in range(world_size)]


def write_settings(folder: Path, rank: int, world_size: int, **settings: Any) -> Path:
    """Write what a supervisor tells the probe of a rank. settings: other than these."""
    start = {"local_rank": rank, "host": "here", "machine": "this", "cores": 1, "cpus": [0], "device": "cpu"}
    batches = {"cores_declared": None, "global_batch": 8 * world_size, "batch_per_gpu": 8}
    contents = {
        "v": 1,
        "rank": rank,
        "world_size": world_size,
        "events": str(folder / f"events.rank{rank}.jsonl"),
        "steps": {"warmup": 5, "block": 5, "last": 25},
        "samples_per_step": 8 * world_size,
        "batch_per_gpu": 8,
        "unit": "samples",
        "step": None,
        "stop": True,
        "stop_channel": None,
        "code": "",
        "start": {**start, **batches},
        **settings,
    }
    path = folder / f"probe.rank{rank}.json"
    path.write_text(json.dumps(contents))
    return path


def environment(probe: str, **variables: str) -> dict[str, str]:
    ours = {"SCALING_PROBE": probe, "PYTHONPATH": str(PROBE), "OMP_NUM_THREADS": "1", **variables}
    return {**{name: value for name, value in os.environ.items() if name not in VARIABLES}, **ours}


def start(folder: Path, command: Sequence[str], env: dict[str, str]) -> subprocess.Popen[str]:
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=env, cwd=folder, **pipes)


def result(folder: Path, rank: int, process: subprocess.Popen[str], expect: int) -> Rank:
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == expect, (process.returncode, stdout, stderr)
    times = folder / f"times.{rank}.json"
    counted = json.loads(times.read_text()) if times.exists() else None
    return Rank(process.returncode, stdout, stderr, read_events(folder, rank), counted)


def read_events(folder: Path, rank: int) -> list[dict[str, Any]]:
    """The rank's events, which the schema and the reader of the analysis accept."""
    log = folder / f"events.rank{rank}.jsonl"
    events = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    for event in events:
        jsonschema.validate(event, SCHEMA)
    assert not RankLog.of(events).damage
    return events
