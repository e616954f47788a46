"""Starts the ranks of a user's script as a supervisor does, without Slurm, and reads what the probe wrote."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from dataclasses import dataclass
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
    **settings: Any,
) -> list[Rank]:
    """Run script and arguments on ranks of this machine until they end, each with the code `expect`.

    RANK in an argument is left for the script. script: in SCRIPTS. told: SCALING_PROBE, instead of the rank's file.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = [str(SCRIPTS / script), *command]
    started = []
    for rank in range(world_size):
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
            "start": {
                "local_rank": rank,
                "host": "here",
                "machine": "this",
                "cores": 1,
                "cpus": [0],
                "device": "cpu",
                "cores_declared": None,
                "global_batch": 8 * world_size,
                "batch_per_gpu": 8,
            },
            **settings,
        }
        path = folder / f"probe.rank{rank}.json"
        path.write_text(json.dumps(contents))
        values = (rank, rank, world_size, world_size, 0, "127.0.0.1", port)
        env = {
            **os.environ,
            **{name: str(value) for name, value in zip(VARIABLES, values, strict=True)},
            "SCALING_PROBE": told or str(path),
            "PYTHONPATH": str(PROBE),
            "OMP_NUM_THREADS": "1",
        }
        full = [str(python), "-u", *([str(PROBE / "run.py")] if runner else []), *arguments]
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(full, env=env, cwd=folder, **pipes))
    ranks = []
    for rank, process in enumerate(started):
        stdout, stderr = process.communicate(timeout=120)
        assert process.returncode == expect, (process.returncode, stdout, stderr)
        log, times = folder / f"events.rank{rank}.jsonl", folder / f"times.{rank}.json"
        events = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        for event in events:
            jsonschema.validate(event, SCHEMA)
        assert not RankLog.of(events).damage
        counted = json.loads(times.read_text()) if times.exists() else None
        ranks.append(Rank(process.returncode, stdout, stderr, events, counted))
    return ranks
