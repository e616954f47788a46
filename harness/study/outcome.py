"""How a run ended, from the files of its attempt: what each rank left, who failed first, who shared what."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.core import checkpoints, events, run_files, spec

STDERR_TAIL_LINES = 30
# A NumPy or framework traceback can hold very long lines.
STDERR_LINE_CHARACTERS = 500
# What ended an attempt that another one is to follow.
BY_LIMIT, BY_PREEMPTION, BY_NODE, BY_FAILURE = "wall limit", "preemption", "lost node", "failure"
# Why a rank's watcher ended it, where it was not the first to fail.
PEER_FAILED = "another rank failed"


@dataclass(frozen=True)
class RankExit:
    """How one rank's process ended: `exit.rank<r>.json` in the attempt's folder.

    code: its exit code; negative: minus the signal that ended it. t: unix seconds.
    reason: why this rank was ended by the harness, where it was; a rank that ended by itself failed before it.
    interrupted: ended because the user or the scheduler said so: the run has not failed, it is not finished.
    server: the number of the parameter server that it was, on a node of its own; its rank is then one after the ranks'.
    """

    rank: int
    code: int
    t: float
    reason: str | None = None
    interrupted: bool = False
    server: int | None = None

    @property
    def name(self) -> str:
        return f"rank {self.rank}" if self.server is None else f"parameter server {self.server}"

    @property
    def failed(self) -> bool:
        return self.code not in (0, events.LEFT)

    @property
    def sentence(self) -> str:
        if self.reason:
            return f"{self.name}: {self.reason}"
        if self.code < 0:
            return f"{self.name} was ended by signal {-self.code} ({_signal_name(-self.code)})"
        return f"{self.name} exited with code {self.code}"


def write_exit(attempt_dir: Path, exit_: RankExit) -> None:
    spec.write_json(attempt_dir / run_files.exit_status(exit_.rank), asdict(exit_))


def read_exits(attempt_dir: Path) -> list[RankExit]:
    """Of the ranks that have ended, in the order in which they did."""
    exits = []
    for path in attempt_dir.glob(run_files.EXITS_OF_RANKS):
        exits.append(RankExit(**json.loads(path.read_text(encoding="utf-8"))))
    return sorted(exits, key=lambda exit_: exit_.t)


def failure(attempt_dir: Path) -> RankExit | None:
    """The rank that failed first; a rank that a lost peer took with it ends later than the peer."""
    failed = [exit_ for exit_ in read_exits(attempt_dir) if exit_.failed]
    first = [exit_ for exit_ in failed if exit_.reason != PEER_FAILED]
    return next(iter(first or failed), None)


def write_job(attempt_dir: Path, submission: str, job_id: str | None, element: int | None = None) -> None:
    """Which submission, and which job of it, the attempt belongs to; written again when the job begins."""
    document = {"submission": submission, "job_id": job_id, "element": element}
    spec.write_json(attempt_dir / run_files.JOB, document)


def read_job(attempt_dir: Path) -> dict[str, Any]:
    """Empty where nothing is known."""
    return _read(attempt_dir / run_files.JOB)


def read_begin(attempt_dir: Path) -> float | None:
    """When the attempt's ranks were started, in unix seconds."""
    return _read(attempt_dir / run_files.BEGIN).get("t")


def write_restart(attempt_dir: Path, by: str, reason: str, step: int) -> bool:
    """Says that another attempt is to follow, and why; False where another rank's watcher has said so already.

    step: of the last checkpoint."""
    document = {"by": by, "reason": reason, "step": step, "t": time.time()}
    try:
        with open(attempt_dir / run_files.AGAIN, "x", encoding="utf-8") as file:
            file.write(json.dumps(document) + "\n")
    except FileExistsError:
        return False
    return True


def read_restart(attempt_dir: Path) -> dict[str, Any]:
    """Empty where no other attempt was to follow."""
    return _read(attempt_dir / run_files.AGAIN)


def write_result_of_job(run_dir: Path, document: dict[str, Any]) -> None:
    """The job's own word. It replaces what a launcher wrote that had given the job up, and the failure of an attempt
    that Slurm then started again by itself: a finished run is never lost."""
    if events.write_result(run_dir, document):
        return
    there = events.read_result(run_dir) or {}
    given_up = there.get("written_by") == "launcher"
    if there.get("status") == events.FAILED and (given_up or document["status"] == events.COMPLETED):
        attempt_dir = run_files.attempt_dir(run_dir, there["attempt"])
        (run_dir / run_files.RESULT).replace(attempt_dir / run_files.REPLACED_RESULT)
        events.write_result(run_dir, document)


def lost_reason(run_dir: Path, job: str | None, state: str | None) -> str:
    """Why a run has no result although its job, which Slurm says ended in `state`, is gone."""
    said = f"; Slurm says {state}" if state else ""
    steps = checkpoints.saved_steps(run_dir)
    saved = f"; saved at step {steps[-1]}: re-run the command to continue from there" if steps else ""
    return f"job {job or '(never submitted)'} left the queue without a result{said}{saved}"


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def result(
    run_dir: Path,
    attempt: int,
    status: str,
    *,
    reason: str | None = None,
    rank_exit: RankExit | None = None,
    started: float | None = None,
    job_id: str | None = None,
    written_by: str = "job",
) -> dict[str, Any]:
    """The document `result.json` (schemas/result.schema.json)."""
    run_spec, site = spec.read_run(run_dir)
    attempt_dir = run_files.attempt_dir(run_dir, attempt)
    failed_rank = rank_exit.rank if rank_exit else None
    return {
        "v": events.RESULT_VERSION,
        "run_id": run_spec.run_id,
        "status": status,
        "attempt": attempt,
        "reason": reason or (rank_exit.sentence if rank_exit else None),
        "failed_rank": failed_rank,
        "exit_code": rank_exit.code if rank_exit else None,
        "stderr_tail": [] if status == events.COMPLETED else stderr_tail(attempt_dir, failed_rank or 0),
        "started": started,
        "ended": time.time(),
        "job_id": job_id,
        "written_by": written_by,
        "oversubscribed": oversubscribed(attempt_dir) or site.oversubscribed,
    }


def stderr_tail(attempt_dir: Path, rank: int) -> list[str]:
    """The last lines that the rank wrote to stderr."""
    return tail(attempt_dir / run_files.stderr(rank))


def tail(path: Path) -> list[str]:
    """The last lines of a log; none where it cannot be read."""
    try:
        with open(path, "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - STDERR_TAIL_LINES * STDERR_LINE_CHARACTERS))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    return [line[:STDERR_LINE_CHARACTERS] for line in text.splitlines()[-STDERR_TAIL_LINES:]]


def batch_stderr_tail(study_folder: Path, job_id: str | None) -> list[str]:
    """The last lines that the job's batch script, and srun in it, wrote to stderr."""
    return tail(study_folder / "submitit" / job_id / f"{job_id}_0_log.err") if job_id else []


def mpirun_message(attempt_dir: Path) -> str:
    """What mpirun last said of an attempt, on one line and without its frames; empty where it said nothing."""
    words = " ".join(line.strip() for line in tail(attempt_dir / run_files.MPIRUN_LOG) if line.strip(" -="))
    if len(words) <= STDERR_LINE_CHARACTERS:
        return words
    half = STDERR_LINE_CHARACTERS // 2  # mpirun says first what it is about, a traceback last
    return f"{words[:half]} ... {words[-half:]}"


def oversubscribed(attempt_dir: Path) -> str | None:
    """Why ranks shared cores or GPUs, from what each rank saw when it started; None where they did not.

    Ranks are counted per machine (the kernel's boot id), not per host name: virtual nodes of one machine share cores.
    """
    starts = []
    for path in sorted(attempt_dir.glob(run_files.EVENTS_OF_RANKS)):
        starts += [event for event in events.read_events(path).events if event["ev"] == "start"][-1:]
    by_machine: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for start in starts:
        by_machine[start["machine"]].append(start)
    for ranks in by_machine.values():
        cores = ranks[0]["cores"]
        threads = sum(start["threads"] for start in ranks)
        if threads > cores:
            return f"{len(ranks)} ranks with {threads} threads on a machine with {cores} cores"
        declared = max(start.get("cores_declared") or 0 for start in ranks)
        if declared > cores:
            return f"a virtual node: the scheduler declares {declared} cores, the machine has {cores}"
    shared = [n for n in Counter(start["device_id"] for start in starts if start.get("device_id")).values() if n > 1]
    if shared:
        return f"{max(shared)} ranks on one GPU"
    return None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
