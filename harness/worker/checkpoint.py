"""Checkpoints of a run: `<run>/checkpoint/step-<n>/`, made under a temporary name and renamed. Knows no framework.

Every rank calls `save` at the same step, and writes into the folder what it alone has; the adapter decides what.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Tuple

from harness.events import EventWriter, attempt_dirs, read_events
from harness.plain import write_json
from harness.spec import RunSpec

if TYPE_CHECKING:
    from harness.worker.adapter import Adapter

FOLDER = "checkpoint"


@dataclass(frozen=True)
class Saved:
    """A finished checkpoint. step: optimiser steps done. attempt: which one wrote it. ended: where training had ended
    with it, how (harness/worker/protocol.py); None while it goes on."""

    path: Path
    step: int
    attempt: int
    code_version: str
    ended: Optional[Dict[str, Any]]


def saved_steps(run_dir: Path) -> List[int]:
    """Of the finished checkpoints, ascending."""
    folder = run_dir / FOLDER
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(name[5:]) for name in names if re.fullmatch(r"step-[0-9]{1,18}", name))


def latest(run_dir: Path, code_version: str) -> Tuple[Optional[Saved], Optional[str]]:
    """The newest checkpoint that this code may continue from, and why the newest one is not it, where that is so."""
    for step in reversed(saved_steps(run_dir)):
        path = run_dir / FOLDER / f"step-{step}"
        try:
            about = json.loads((path / "about.json").read_text(encoding="utf-8"))
            saved = Saved(path, step, int(about["attempt"]), str(about["code_version"]), about.get("ended"))
        except (OSError, ValueError, KeyError, TypeError) as error:
            return None, f"{path.name} cannot be read ({error}); the run starts from step 0"
        if saved.code_version != code_version:
            versions = f"code {saved.code_version}, this is {code_version}"
            return None, f"{path.name} was written by {versions}; the run starts from step 0"
        return saved, None
    return None, None


class Checkpoints:
    """When and how one attempt saves."""

    def __init__(
        self, run_dir: Path, attempt: int, code_version: str, spec: RunSpec, rank: int, log: EventWriter
    ) -> None:
        self.folder = run_dir / FOLDER
        self.about = {"attempt": attempt, "code_version": code_version}
        self.interval = spec.checkpoint.interval_steps
        self.rank, self.ranks = rank, spec.gpus
        self.log = log
        self.last_step = 0

    def due(self, step: int) -> bool:
        return bool(self.interval) and step - self.last_step >= self.interval

    def save(self, adapter: Adapter, step: int, why: str, ended: Optional[Mapping[str, Any]] = None) -> None:
        """On every rank at the same step. ended: see `Saved`.

        Raises OSError where the disk is full or cannot be written."""
        if step == self.last_step:
            return
        start = time.perf_counter()
        path = self.folder / f"step-{step}"
        temporary = self.folder / f"step-{step}.tmp"
        # Every rank: another node may see the folder that rank 0 makes only later.
        temporary.mkdir(parents=True, exist_ok=True)
        adapter.save(temporary)
        adapter.total([0.0])  # all have written
        if self.rank == 0:
            write_json(temporary / "about.json", {**self.about, "ended": ended})
            if path.exists():  # of an attempt whose state was not to be continued from
                shutil.rmtree(path)
            temporary.rename(path)
            for other in self.folder.iterdir():
                if other != path:
                    shutil.rmtree(other, ignore_errors=True)
        adapter.total([0.0])  # it is there: nobody leaves before
        self.last_step = step
        size = sum(file.stat().st_size for file in path.iterdir()) if self.rank == 0 else None
        self.log.write("checkpoint", step=step, why=why, seconds=time.perf_counter() - start, bytes=size)

    def resume(self, adapter: Adapter, saved: Optional[Saved], ignored: Optional[str]) -> int:
        """Loads what was saved; gives the step to go on from.

        Raises RuntimeError where the ranks see different checkpoints.
        """
        step = saved.step if saved else 0
        steps = adapter.total([float(step) if rank == self.rank else 0.0 for rank in range(self.ranks)])
        if min(steps) != max(steps):
            raise RuntimeError(
                f"the ranks see different checkpoints: of step {min(steps):.0f} and of step {max(steps):.0f}"
            )
        if saved:
            adapter.load(saved.path)
            self.last_step = saved.step
        before = attempt_dirs(self.folder.parent)[:-1]
        if saved or ignored or before:
            done, idle = _left_behind(before, self.rank)
            self.log.write(
                "resume",
                step=step,
                from_attempt=saved.attempt if saved else None,
                ignored=ignored,
                lost_steps=max(0, done - step),
                idle_seconds=idle,
            )
        return step


def _left_behind(attempts: List[Path], rank: int) -> Tuple[int, Optional[float]]:
    """(steps that earlier attempts had done, seconds since the last sign of life of one), from this rank's logs."""
    done, seen = 0, None
    for attempt in attempts:
        try:
            log = read_events(attempt / f"events.rank{rank}.jsonl").events
        except OSError:
            continue
        done = max([done, *(event["step"] + event["n"] for event in log if event["ev"] == "steps")])
        seen = log[-1]["t"] if log else seen
    return done, None if seen is None else max(0.0, time.time() - seen)
