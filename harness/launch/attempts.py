"""Runs that this process itself starts, one after another: each to its result, with the restarts that it may have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.core import events, run_files
from harness.study import outcome

NO_WORD = "the run's processes ended without a word, as when they are killed"


def to_result(run_dir: Path, attempt: int, start: Callable[[int], str | None]) -> dict[str, Any] | None:
    """start(attempt): runs one attempt to its end, gives the job's id.

    Gives the run's result, or None where it was told to end, or where its job goes back into the queue.
    """
    while True:
        job_id = start(attempt)
        attempt_dir = run_files.attempt_dir(run_dir, attempt)
        if (result := events.read_result(run_dir)) is not None:
            return result
        again = outcome.read_restart(attempt_dir)
        if again.get("by") == outcome.BY_FAILURE:
            attempt += 1
            continue
        told = any(e.interrupted or e.code == events.LEFT for e in outcome.read_exits(attempt_dir))
        if again or told:
            return None
        words = outcome.mpirun_message(attempt_dir)
        reason = f"{NO_WORD}; mpirun says: {words}" if words else NO_WORD
        result = outcome.result(run_dir, attempt, events.FAILED, reason=reason, job_id=job_id, written_by="launcher")
        events.write_result(run_dir, result)
        return events.read_result(run_dir)
