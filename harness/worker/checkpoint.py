"""Checkpoints of a run in `<run>/checkpoint/step-<n>/`, written under a temporary name and renamed.

Every rank calls `save` at the same step and writes its own state; the adapter decides what that is.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, List, Mapping, Optional, Tuple

from harness.core import run_files
from harness.core.checkpoints import Saved
from harness.core.events import EventWriter, attempt_dirs, read_events
from harness.core.measuring.environment import machine_id
from harness.core.serialization import write_json
from harness.core.spec import RunSpec

if TYPE_CHECKING:
    from harness.worker.adapter import Adapter


class Checkpoints:
    """Decides when one attempt saves, and does it."""

    def __init__(
        self, run_dir: Path, attempt: int, code_version: str, spec: RunSpec, rank: int, log: EventWriter
    ) -> None:
        self.folder = run_dir / run_files.CHECKPOINT
        self.about = {"attempt": attempt, "code_version": code_version}
        self.interval = spec.checkpoint.interval_steps
        self.rank, self.ranks = rank, spec.gpus
        self.log = log
        self.last_step = 0

    def due(self, step: int) -> bool:
        return bool(self.interval) and step - self.last_step >= self.interval

    def save(self, adapter: Adapter, step: int, why: str, ended: Optional[Mapping[str, Any]] = None) -> None:
        """Save on every rank at the same step. ended: see `Saved`.

        Raises OSError if the disk is full or not writable.
        """
        if step == self.last_step:
            return
        start = time.perf_counter()
        path = self.folder / f"step-{step}"
        temporary = self.folder / f"step-{step}.tmp"
        # On every rank: another node may see rank 0's folder only later.
        temporary.mkdir(parents=True, exist_ok=True)
        adapter.save(temporary)
        adapter.allreduce_sum([0.0])  # wait until all have written
        if self.rank == 0:
            write_json(temporary / "about.json", {**self.about, "ended": ended})
            if path.exists():  # from an attempt whose state could not be resumed
                shutil.rmtree(path)
            temporary.rename(path)
            for other in self.folder.iterdir():
                if other != path:
                    shutil.rmtree(other, ignore_errors=True)
        adapter.allreduce_sum([0.0])  # wait for the renaming before any rank can exit
        self.last_step = step
        size = sum(file.stat().st_size for file in path.iterdir()) if self.rank == 0 else None
        self.log.write("checkpoint", step=step, why=why, seconds=time.perf_counter() - start, bytes=size)

    def resume(self, adapter: Adapter, saved: Optional[Saved], ignored: Optional[str]) -> int:
        """Load the checkpoint, if any, and return the step to continue from.

        Raises RuntimeError if the ranks see different checkpoints.
        """
        step = saved.step if saved else 0
        steps = adapter.allreduce_sum([float(step) if rank == self.rank else 0.0 for rank in range(self.ranks)])
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
    """Return (steps done by earlier attempts, seconds since the last event of one) from this rank's logs.

    The seconds are None where another machine wrote that event, whose clock may differ.
    """
    done, seen = 0, None
    for attempt in attempts:
        try:
            log = read_events(attempt / run_files.events(rank)).events
        except OSError:
            continue
        done = max([done, *(event["step"] + event["n"] for event in log if event["ev"] == "steps")])
        if log:
            here = any(event["ev"] == "start" and event.get("machine") == machine_id() for event in log)
            seen = log[-1]["t"] if here else None
    return done, None if seen is None else max(0.0, time.time() - seen)
