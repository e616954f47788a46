"""Status of every run of a study, from the run directories first and from Slurm second. Read-only."""

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
from harness.study import outcome, rank_exits, submissions

COMPLETED, FAILED = events.COMPLETED, events.FAILED
RUNNING, PENDING, ENDING, STOPPED, MISSING, UNKNOWN = "running", "pending", "ending", "stopped", "missing", "unknown"
# Display order: what needs attention first.
STATES = (RUNNING, PENDING, ENDING, UNKNOWN, FAILED, STOPPED, MISSING, COMPLETED)
# Note of a run whose state only the machine that started it can tell.
ELSEWHERE = (
    "started on another machine; by this machine's clock its files are not of the last minute, but the clocks may "
    "differ: ask there, or with --watch"
)
# Enough of a log's end to contain the last block's event.
TAIL_BYTES = 16384


@dataclass
class RunStatus:
    """Status of one run."""

    run_id: str
    state: str
    gpus: int | None = None
    nodes: int | None = None
    job: str | None = None
    attempts: int = 0
    steps_done: int = 0  # optimiser steps, all phases
    steps: int | None = None  # planned optimiser steps, all phases
    fixed: bool = True  # False: `steps` is an upper limit
    samples_per_second: float | None = None  # last block, all ranks
    eta_seconds: float | None = None  # at the speed of the last block; None if not running
    node_hours: float = 0.0  # allocated so far, all attempts
    oversubscribed: str | None = None
    note: str | None = None  # why the run waits, failed or has an unknown state


@dataclass(frozen=True)
class StudyStatus:
    """Status of a study."""

    study: str
    folder: str
    t: float
    runs: tuple[RunStatus, ...]
    planned_node_hours: float  # worst case of everything launched
    remark: str | None  # what Slurm could not be asked

    def to_json(self) -> dict[str, Any]:
        """The document of schemas/status.schema.json."""
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


class SlurmCache:
    """Caches Slurm's answers.

    Each reading calls squeue and sacct at most once; repeated readings call sacct at most once a minute.
    """

    def __init__(self, queue_seconds: float = 30.0, accounting_seconds: float = 60.0) -> None:
        self._queue_seconds, self._accounting_seconds = queue_seconds, accounting_seconds
        self._queue: dict[str, Queued] | None = None
        self._queue_at = self._accounting_at = -math.inf
        self._states: dict[str, str] = {}
        self._remarks: dict[str, str] = {}

    @property
    def remark(self) -> str | None:
        """What does not answer, and what the status lacks for it. None if all answers."""
        return "; ".join(self._remarks.values()) or None

    def queue(self) -> Mapping[str, Queued] | None:
        """The user's jobs by id. None if Slurm does not answer; `remark` then says so."""
        if time.monotonic() > self._queue_at + self._queue_seconds:
            self._queue_at = time.monotonic()
            self._queue = self._call(Client().queue, "Slurm", "this status is from the run directories alone")
        return self._queue

    def states(self, jobs: set[str]) -> Mapping[str, str]:
        """States of jobs that have left the queue, as far as the accounting knows them."""
        if jobs - self._states.keys() and time.monotonic() > self._accounting_at + self._accounting_seconds:
            self._accounting_at = time.monotonic()
            unknown = "how jobs that have left the queue ended is not known"
            self._states.update(self._call(lambda: Client().accounting(jobs), "Slurm's accounting", unknown) or {})
        return self._states

    def _call(self, ask: Callable[[], Any], what: str, then: str) -> Any:
        try:
            answer = ask()
        except SlurmUnavailable as error:
            self._remarks[what] = f"{what} does not answer ({error}); {then}"
            return None
        self._remarks.pop(what, None)
        return answer


def read(folder: Path, slurm: SlurmCache) -> StudyStatus:
    """Read the current status of a study. Raises UserError if the folder is not a study."""
    study = document(folder)
    submitted = submissions.read(folder)
    invocations = study["invocations"]
    asked = dict.fromkeys(run_id for invocation in invocations for run_id in invocation["runs"])
    runs = [_status_from_files(folder / run_files.RUNS / run_id, submitted) for run_id in asked]
    on_slurm = any(invocation["cluster"] == "slurm" for invocation in invocations)
    if on_slurm and any(run.state not in (COMPLETED, FAILED) for run in runs):
        _update_from_slurm(folder, runs, submitted, slurm)
    for run in runs:
        if run.state == UNKNOWN and not (on_slurm and run.job):
            _settle_without_slurm(run)
    planned = sum(
        float(array.get("worst_case_node_hours", 0)) for invocation in invocations for array in invocation["arrays"]
    )
    remark = slurm.remark if on_slurm else None
    return StudyStatus(study["study"], str(folder), time.time(), tuple(runs), planned, remark)


def _nodes(spec: RunSpec) -> int:
    return spec.placement.nodes + (0 if spec.cluster.name == "local" else spec.server_nodes)


def _status_from_files(run_dir: Path, submitted: Mapping[str, submissions.Submission]) -> RunStatus:
    run = RunStatus(run_dir.name, UNKNOWN)
    try:
        spec = json.loads((run_dir / run_files.SPEC).read_text(encoding="utf-8"))["spec"]
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
        latest = _last_events(attempt_dir / run_files.events(0))
        running = result is None and attempt_dir == attempts[-1] and events.is_running(attempt_dir)
        if running:
            run.state = RUNNING
        elif running is None and run.job is None:
            run.note = ELSEWHERE
        here = running and events.alive(attempt_dir)  # so that the attempt began by this clock
        seconds += max(0.0, (time.time() if here else _last_sign(attempt_dir, latest)) - t)
        if attempt_dir == begun[-1][0]:
            _progress(run, latest, batch)
    run.node_hours = seconds * run.nodes / 3600
    return run


def _last_sign(attempt_dir: Path, latest: list[dict[str, Any]]) -> float:
    """Latest time that rank 0's files hold, in unix seconds: by the same clock as the attempt's beginning, whereas the
    other nodes' may differ, and the files' own times change when they are copied."""
    times = [exit_.t for exit_ in rank_exits.read(attempt_dir) if exit_.rank == 0]
    times += [event["t"] for event in latest if isinstance(event.get("t"), (int, float))]
    return max(times, default=0.0)


def _progress(run: RunStatus, latest: list[dict[str, Any]], batch: int) -> None:
    """Read progress from the last events of rank 0."""
    for event in reversed(latest):
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


def _update_from_slurm(
    folder: Path, runs: list[RunStatus], submitted: Mapping[str, submissions.Submission], slurm: SlurmCache
) -> None:
    queue = slurm.queue()
    if queue is None:
        return
    if found := {s.token: s for s in submissions.adopt(folder, submitted, queue)}:
        for run in runs:
            run.job = run.job or submissions.job_of(folder / run_files.RUNS / run.run_id, {**submitted, **found})
    gone = []
    for run in runs:
        if run.state in (COMPLETED, FAILED):
            continue
        queued = queue.get(run.job or "")
        if queued is None:
            ended = _status_from_files(folder / run_files.RUNS / run.run_id, submitted)
            if ended.state in (COMPLETED, FAILED):  # meanwhile
                vars(run).update(vars(ended))
            else:
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
            _settle_without_slurm(run)
        elif run.state == RUNNING and states.get(run.job, "RUNNING").split()[0] in (
            "RUNNING",
            "COMPLETED",
            "COMPLETING",
        ):
            run.state = ENDING
        else:
            run.state = STOPPED
            run.note = outcome.lost_reason(folder / run_files.RUNS / run.run_id, run.job, states.get(run.job))
        if run.state != RUNNING:
            run.eta_seconds = None


def _settle_without_slurm(run: RunStatus) -> None:
    """Decide on the state of a run that has no job in Slurm."""
    if run.state != RUNNING and run.note != ELSEWHERE:
        run.state = STOPPED if run.attempts else MISSING


def _last_events(path: Path) -> list[dict[str, Any]]:
    """Events at the end of a log, which may be long and is polled every few seconds."""
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
        except ValueError:  # cut off at the start, or incomplete at the end
            continue
        if isinstance(event, dict):
            found.append(event)
    return found


def document(folder: Path) -> dict[str, Any]:
    """Read `study.json`. Raises UserError."""
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
    except NotADirectoryError:
        file = next(path for path in (folder, *folder.parents) if path.is_file())
        raise UserError(f"{file} is a file; give a study's folder, such as results/<study>") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path} is not a study.json of version {events.STUDY_VERSION}") from None
    return dict(document)
