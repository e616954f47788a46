"""Reads and writes how an attempt ended: its job, its result and the reason, the request for another attempt."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.core import checkpoints, events, run_files, spec
from harness.core.measuring.oversubscription import shared_cores_or_gpus
from harness.core.seals import sealed
from harness.core.system import disk
from harness.core.workload.patterns import RANK
from harness.study import rank_exits
from harness.study.rank_exits import RankExit

STDERR_TAIL_LINES = 30
# What srun, which has failed, has printed, if its output is empty.
NOTHING = "nothing was printed, as on a full disk"
# What Slurm's `code:signal` of a failed job means. 0:15: the batch script's end by SIGTERM. Slurm sends it when it
# requeues or cancels a job, which then does not count as failed, unless slurmctld was killed before it had saved that.
# 0:53: slurmstepd's for output files that cannot be opened.
_EXIT_CODES = {
    f"{disk.FULL}:0": disk.NO_SPACE,
    "0:15": "its batch script was ended by SIGTERM, as by a requeue or cancellation that a crash of slurmctld forgot",
    "0:53": "its output files could not be opened, as on a full disk",
}
# NumPy and framework tracebacks can contain very long lines.
STDERR_LINE_CHARACTERS = 500
# The last line of a traceback, and what programs print of an error of their own.
_ERROR = re.compile(r"[\w.]+(Error|Exception|Interrupt|Exit)\b|(\S+: )?(fatal )?error: ", re.IGNORECASE)
# Reasons for following an attempt with another.
BY_LIMIT, BY_PREEMPTION, BY_NODE, BY_FAILURE = "wall limit", "preemption", "lost node", "failure"


def sentence(attempt_dir: Path, exit_: RankExit) -> str:
    """How a rank failed; if it ended by itself, with what it said last of an error."""
    error = _last_error(attempt_dir, exit_.rank) if exit_.code > 0 and not exit_.reason else None
    return exit_.sentence + (f": {error}" if error else "")


def full_disk(folder: Path, output: Sequence[str]) -> str | None:
    """Return that the folder's disk is full, if that was printed or is so still: then nothing could be printed."""
    printed = next((line for line in output if re.search("no space left|quota exceeded", line, re.IGNORECASE)), None)
    return printed or (disk.NO_SPACE if disk.is_full(folder) else None)


def write_job(
    attempt_dir: Path, submission: str, job_id: str | None, array_index: int | None = None, host: str | None = None
) -> None:
    """Record which submission and job the attempt belongs to. Written again when the job starts.

    host: for a run without Slurm, whose job is a process: the machine that it runs on.
    """
    document = {"submission": submission, "job_id": job_id, "element": array_index, "host": host}
    spec.write_json(attempt_dir / run_files.JOB, document)


def read_job(attempt_dir: Path) -> dict[str, Any]:
    """Return the attempt's job record; empty if there is none."""
    return _read(attempt_dir / run_files.JOB)


def read_begin(attempt_dir: Path) -> float | None:
    """Start of the attempt's ranks in unix seconds."""
    return _read(attempt_dir / run_files.BEGIN).get("t")


def write_restart(attempt_dir: Path, by: str, reason: str, step: int) -> bool:
    """Request another attempt. Returns False if another supervisor has already requested one.

    Args:
        attempt_dir: folder of the attempt that ended.
        by: category, such as BY_LIMIT.
        reason: sentence for the user.
        step: last checkpoint.
    """
    document = {"by": by, "reason": reason, "step": step, "t": time.time()}
    path = attempt_dir / run_files.AGAIN
    try:
        file = open(path, "x", encoding="utf-8")  # noqa: SIM115 (closed below)
    except FileExistsError:
        return False
    try:
        with file:
            file.write(json.dumps(sealed(document)) + "\n")
    except OSError:  # the disk is full
        path.unlink()
        raise
    return True


def read_restart(attempt_dir: Path) -> dict[str, Any]:
    """Return the request for another attempt; empty if there is none."""
    return _read(attempt_dir / run_files.AGAIN)


def write_result_of_job(run_dir: Path, document: dict[str, Any]) -> None:
    """Write the job's own result.

    It replaces a result written by a launcher that had given up on the job, and the failure of an attempt that Slurm
    restarted on its own, so a completed run is never lost.
    """
    if events.write_result(run_dir, document):
        return
    existing = events.read_result(run_dir) or {}
    given_up = existing.get("written_by") == "launcher"
    if existing.get("status") == events.FAILED and (given_up or document["status"] == events.COMPLETED):
        attempt_dir = run_files.attempt_dir(run_dir, existing["attempt"])
        (run_dir / run_files.RESULT).replace(attempt_dir / run_files.REPLACED_RESULT)
        events.write_result(run_dir, document)


def lost_reason(run_dir: Path, job: str | None, state: str | None) -> str:
    """Explain why a run has no result although its job is gone. state: the job's final state in Slurm."""
    if state == "PENDING":
        # A task that is cancelled before it starts gets no record of its own: its array's stays as it was.
        slurm_state = "; Slurm's accounting has it as still pending: it was cancelled before it started"
    elif state is None and job:
        slurm_state = "; Slurm's accounting does not say why"
    else:
        meaning = _EXIT_CODES.get(state.rpartition(" ")[2]) if state else None
        slurm_state = f"; Slurm says {state}" + (f": {meaning}" if meaning else "") if state else ""
    attempts = events.attempt_dirs(run_dir)
    first = rank_exits.failure(attempts[-1]) if attempts else None
    # Its supervisors may have told each other, but not have been able to write the result.
    known = f"; {sentence(attempts[-1], first)}" if first is not None and not first.interrupted else ""
    steps = checkpoints.saved_steps(run_dir)
    saved = f"; saved at step {steps[-1]}: re-run the command to continue from there" if steps else ""
    return f"job {job or '(never submitted)'} left the queue without a result{slurm_state}{known}{saved}"


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
    """Build the contents of `result.json` (schemas/result.schema.json)."""
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
    """The last lines of the rank's stderr."""
    return tail(attempt_dir / run_files.stderr(rank))


def tail(path: Path, lines: int = STDERR_TAIL_LINES) -> list[str]:
    """The last lines of a log; empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - lines * STDERR_LINE_CHARACTERS))
            text = file.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    return [line[:STDERR_LINE_CHARACTERS] for line in text.splitlines()[-lines:]]


def _last_error(attempt_dir: Path, rank: int) -> str | None:
    """The last line of the rank's stderr that is an error, or else the last line; libraries warn after a traceback."""
    lines = [RANK.sub("", line, count=1).strip() for line in stderr_tail(attempt_dir, rank)]
    said = [line for line in lines if line]
    errors = [line for line in said if _ERROR.match(line)]
    return (errors or said or [""])[-1].removeprefix("error: ") or None


def batch_stderr_tail(study_folder: Path, job_id: str | None) -> list[str]:
    """The last stderr lines of the job's batch script and its srun."""
    paths = sorted(study_folder.glob(f"submitit/*/{job_id}_0_log.err"))
    return tail(paths[-1]) if paths else []


def mpirun_message(attempt_dir: Path) -> str:
    """mpirun's last output for an attempt on one line, without separator lines; empty if there is none."""
    message = " ".join(line.strip() for line in tail(attempt_dir / run_files.MPIRUN_LOG) if line.strip(" -="))
    if len(message) <= STDERR_LINE_CHARACTERS:
        return message
    half = STDERR_LINE_CHARACTERS // 2  # mpirun names the subject first; a traceback ends with the error
    return f"{message[:half]} ... {message[-half:]}"


def oversubscribed(attempt_dir: Path) -> str | None:
    """Describe how ranks shared cores or GPUs, from their start events; None if they did not."""
    starts = []
    for path in sorted(attempt_dir.glob(run_files.EVENTS_OF_RANKS)):
        starts += [event for event in events.read_events(path).events if event["ev"] == "start"][-1:]
    return shared_cores_or_gpus(starts)
