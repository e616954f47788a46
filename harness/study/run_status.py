"""Where each run of a study stands: from the run directories first, from Slurm second. Reads; never writes."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.core import events, run_files
from harness.core.errors import UserError
from harness.core.serialization import from_plain
from harness.core.spec import MeasureSpec, RunSpec
from harness.slurm.client import Client, Queued, SlurmUnavailable
from harness.study import outcome, submissions

COMPLETED, FAILED = events.COMPLETED, events.FAILED
RUNNING, PENDING, ENDING, STOPPED, MISSING, UNKNOWN = "running", "pending", "ending", "stopped", "missing", "unknown"
# In the order in which a person looks for them.
STATES = (RUNNING, PENDING, ENDING, UNKNOWN, FAILED, STOPPED, MISSING, COMPLETED)
# A job that has just left the queue may still be writing; one without a sign of life for longer is gone.
FRESH_SECONDS = 60.0
# The end of a log holds the last block's event.
TAIL_BYTES = 16384


@dataclass
class RunState:
    """One run. steps_done, steps: optimiser steps, of all phases. fixed: whether it takes just so many, and not at
    most so many. samples_per_second: of the last block, all ranks.
    eta_seconds: until the steps are done, as fast as the last block; None where it does not run.
    node_hours: allocated so far, over all attempts. note: why it waits, failed, or is not known."""

    run_id: str
    state: str
    gpus: int | None = None
    nodes: int | None = None
    job: str | None = None
    attempts: int = 0
    steps_done: int = 0
    steps: int | None = None
    fixed: bool = True
    samples_per_second: float | None = None
    eta_seconds: float | None = None
    node_hours: float = 0.0
    oversubscribed: str | None = None
    note: str | None = None


@dataclass(frozen=True)
class StudyState:
    """planned_node_hours: the worst case of all that was launched. remark: what Slurm could not be asked."""

    study: str
    folder: str
    t: float
    runs: tuple[RunState, ...]
    planned_node_hours: float
    remark: str | None

    def plain(self) -> dict[str, Any]:
        return {
            "v": 1,
            "study": self.study,
            "folder": self.folder,
            "t": self.t,
            "planned_node_hours": self.planned_node_hours,
            "used_node_hours": sum(run.node_hours for run in self.runs),
            "remark": self.remark,
            "runs": [asdict(run) for run in self.runs],
        }


class Slurm:
    """Slurm's answers, kept for a while: each reading asks at most one squeue and one sacct, and a watcher asks the
    accounting at most once a minute."""

    def __init__(self, queue_seconds: float = 30.0, accounting_seconds: float = 60.0) -> None:
        self._queue_seconds, self._accounting_seconds = queue_seconds, accounting_seconds
        self._queue: dict[str, Queued] | None = None
        self._queue_at = self._accounting_at = -math.inf
        self._states: dict[str, str] = {}
        self.remark: str | None = None

    def queue(self) -> Mapping[str, Queued] | None:
        """None where Slurm does not answer; `remark` then says so."""
        if time.monotonic() > self._queue_at + self._queue_seconds:
            self._queue_at = time.monotonic()
            self._queue = self._ask(Client().queue)
        return self._queue

    def states(self, jobs: set[str]) -> Mapping[str, str]:
        """Of jobs that have left the queue, as far as the accounting knows them."""
        if jobs - self._states.keys() and time.monotonic() > self._accounting_at + self._accounting_seconds:
            self._accounting_at = time.monotonic()
            self._states.update(self._ask(lambda: Client().accounting(jobs)) or {})
        return self._states

    def _ask(self, ask: Callable[[], Any]) -> Any:
        try:
            answer = ask()
        except SlurmUnavailable as error:
            self.remark = f"Slurm does not answer ({error}); what follows is from the run directories alone"
            return None
        self.remark = None
        return answer


def read(folder: Path, slurm: Slurm) -> StudyState:
    """How the study stands now. Raises UserError where the folder is no study's."""
    study = document(folder)
    submitted = submissions.read(folder)
    invocations = study["invocations"]
    asked = dict.fromkeys(run_id for invocation in invocations for run_id in invocation["runs"])
    runs = [_from_files(folder / run_files.RUNS / run_id, submitted) for run_id in asked]
    on_slurm = any(invocation["cluster"] == "slurm" for invocation in invocations)
    if on_slurm and any(run.state not in (COMPLETED, FAILED) for run in runs):
        _from_slurm(folder, runs, slurm)
    for run in runs:
        if run.state == UNKNOWN and not (on_slurm and run.job):
            run.state = STOPPED if run.attempts else MISSING
    planned = sum(
        float(array.get("worst_case_node_hours", 0)) for invocation in invocations for array in invocation["arrays"]
    )
    remark = slurm.remark if on_slurm else None
    return StudyState(study["study"], str(folder), time.time(), tuple(runs), planned, remark)


def _nodes(spec: RunSpec) -> int:
    return spec.placement.nodes + (0 if spec.cluster.name == "local" else spec.server_nodes)


def _from_files(run_dir: Path, submitted: Mapping[str, submissions.Submission]) -> RunState:
    run = RunState(run_dir.name, UNKNOWN)
    try:
        spec = json.loads((run_dir / "spec.json").read_text(encoding="utf-8"))["spec"]
        run.gpus, run.nodes = int(spec["gpus"]), _nodes(from_plain(RunSpec, spec))
        measure = from_plain(MeasureSpec, spec["measure"])
        run.steps, run.fixed = measure.most_steps, measure.fixed
        batch = int(spec["global_batch"])
    except FileNotFoundError:
        run.note = "not submitted yet"
        return run
    except (OSError, ValueError, KeyError, TypeError) as error:
        run.note = f"spec.json cannot be read: {error}"
        return run
    attempts = events.attempt_dirs(run_dir)
    begun = [(d, t) for d in attempts if (t := outcome.read_begin(d)) is not None]
    run.attempts = len(begun)
    try:
        result = events.read_result(run_dir)
        if result is not None and result["status"] not in (COMPLETED, FAILED):
            raise ValueError(
                f"{run_files.RESULT} has the unknown status {result['status']!r}; the study's command repeats this run"
            )
    except (ValueError, OSError) as error:
        run.note = str(error)
        return run
    if result is not None:
        run.state, run.note, run.job = result["status"], result.get("reason"), result.get("job_id")
        run.oversubscribed = result.get("oversubscribed")
    else:
        run.job = submissions.job_of(run_dir, submitted)
    seconds = 0.0
    for attempt_dir, t in begun:
        last = _last_sign(attempt_dir)
        still = result is None and attempt_dir == attempts[-1] and time.time() - last < FRESH_SECONDS
        if still:
            run.state = RUNNING
        seconds += max(0.0, (time.time() if still else last) - t)
    run.node_hours = seconds * run.nodes / 3600
    if begun:
        _progress(run, begun[-1][0], batch)
    return run


def _progress(run: RunState, attempt_dir: Path, batch: int) -> None:
    """From the end of rank 0's log: it is read every few seconds, and may be long."""
    for event in reversed(_tail(attempt_dir / run_files.events(0))):
        if event.get("ev") == "steps":
            run.steps_done = event["step"] + event["n"]
            if event["seconds"] > 0:
                run.samples_per_second = event["n"] * batch / event["seconds"]
                if run.state == RUNNING and run.steps is not None:
                    run.eta_seconds = (run.steps - run.steps_done) * event["seconds"] / event["n"]
            return
        if event.get("ev") == "resume":
            run.steps_done = event["step"]
            return


def _from_slurm(folder: Path, runs: list[RunState], slurm: Slurm) -> None:
    queue = slurm.queue()
    if queue is None:
        return
    gone = []
    for run in runs:
        if run.state in (COMPLETED, FAILED):
            continue
        queued = queue.get(run.job or "")
        if queued is None:
            gone.append(run)
        elif queued.state == "RUNNING":
            run.state = RUNNING
            run.note = None if run.steps_done else "starting"
        elif queued.state == "COMPLETING":
            run.state = ENDING
        else:
            run.state = PENDING
            run.eta_seconds = run.samples_per_second = None
            start = "" if queued.start in ("", "N/A") else f", expected to start {queued.start}"
            reason = "" if queued.reason == "None" else queued.reason
            run.note = f"{reason}{start}".removeprefix(", ") or None
            if queued.state != "PENDING":
                run.note = f"{queued.state}: {run.note or ''}".removesuffix(": ")
    states = slurm.states({run.job for run in gone if run.job})
    for run in gone:
        if run.job is None:
            run.state = STOPPED if run.attempts else MISSING
        elif run.state == RUNNING and states.get(run.job, "RUNNING").split()[0] in (
            "RUNNING",
            "COMPLETED",
            "COMPLETING",
        ):
            run.state = ENDING
        else:
            run.state = STOPPED
            run.note = outcome.lost_reason(folder / run_files.RUNS / run.run_id, run.job, states.get(run.job))
        run.eta_seconds = None


def _last_sign(attempt_dir: Path) -> float:
    """When a rank of the attempt last wrote anything, in unix seconds."""
    last = 0.0
    for path in attempt_dir.iterdir():
        if path.name.startswith(("events.", "exit.", "begin.", "stderr.")):
            last = max(last, path.stat().st_mtime)
    return last


def _tail(path: Path) -> list[dict[str, Any]]:
    try:
        with open(path, "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - TAIL_BYTES))
            lines = file.read().split(b"\n")
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:  # cut at the beginning, or torn at the end
            continue
        if isinstance(event, dict):
            found.append(event)
    return found


def document(folder: Path) -> dict[str, Any]:
    path = folder / run_files.STUDY
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["v"] != events.STUDY_VERSION:
            raise ValueError(f"version {document['v']}")
        for invocation in document["invocations"]:
            _ = invocation["runs"], invocation["arrays"], invocation["cluster"]
    except FileNotFoundError:
        inside = sorted(p.parent.name for p in folder.glob("*/study.json")) if folder.is_dir() else []
        hint = f"studies in it: {', '.join(inside[:5])}" if inside else "give a folder such as results/<study>"
        raise UserError(f"{folder} is not a study, it has no study.json; {hint}") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path} is not a study.json of version {events.STUDY_VERSION}") from None
    return dict(document)
