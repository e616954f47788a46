"""Runs started by this process itself: each is driven to its result, including any restarts it is allowed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.core import events, run_files
from harness.core.errors import UserError
from harness.core.system import disk
from harness.study import outcome, rank_exits

NO_EXIT_STATUS = "the run's processes ended without an exit status, as when they are killed"


def to_result(run_dir: Path, attempt: int, start: Callable[[int], str | None]) -> dict[str, Any] | None:
    """Run attempts until the run has a result.

    Args:
        run_dir: the run directory.
        attempt: number of the first attempt.
        start: runs the attempt of the given number to its end and returns the job id.

    Returns:
        The run's result; None if it was told to stop or its job was requeued.

    Raises:
        UserError: the disk of the results is full, so that there is no result.
    """
    try:
        return _driven(run_dir, attempt, start)
    except OSError as error:
        if not disk.is_full(run_dir, error):
            raise
        raise _full_disk(run_dir) from None


def _driven(run_dir: Path, attempt: int, start: Callable[[int], str | None]) -> dict[str, Any] | None:
    while True:
        if disk.is_full(run_dir):
            raise _full_disk(run_dir)
        job_id = start(attempt)
        attempt_dir = run_files.attempt_dir(run_dir, attempt)
        if (result := events.read_result(run_dir)) is not None:
            return result
        restart = outcome.read_restart(attempt_dir)
        if restart.get("by") == outcome.BY_FAILURE:
            attempt += 1
            continue
        stopped = any(e.interrupted or e.code == events.LEFT for e in rank_exits.read(attempt_dir))
        if restart or stopped:
            return None
        if disk.is_full(run_dir):
            raise _full_disk(run_dir)
        first, message = rank_exits.failure(attempt_dir), outcome.mpirun_message(attempt_dir)
        reason = NO_EXIT_STATUS if first is None else outcome.sentence(attempt_dir, first)
        reason += f"; mpirun says: {message}" if message else ""
        result = outcome.result(run_dir, attempt, events.FAILED, reason=reason, job_id=job_id, written_by="launcher")
        events.write_result(run_dir, result)
        return events.read_result(run_dir)


def _full_disk(run_dir: Path) -> UserError:
    study = run_dir.parent.parent
    return UserError(
        f"{disk.NO_SPACE}: {run_dir.name} has no result; free space, or numbers of files (df -h {study}; "
        f"df -i {study}), and re-run the command to continue"
    )
