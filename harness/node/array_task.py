"""`python -m harness.node.array_task <study> <token>`: supervises one rank of a job array task.

Replaces submitit's own entry point, which would import submitit, NumPy and asyncio into every one of these processes.
Which run to start is read from the submission's file.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from harness.node import attempt
from harness.study import submissions

# submitit's own limit.
WAIT_SECONDS = 60.0
POLL_SECONDS = 0.2


def main() -> None:
    folder, token = Path(sys.argv[1]), sys.argv[2]
    _wait_for_submission(folder)
    task = submissions.run_of_array_task(folder, token, int(os.environ.get("SLURM_ARRAY_TASK_ID", "0")))
    if task is None:
        print(f"nothing to do: no run of {folder} belongs to this job anymore", flush=True)
        return
    run_dir, first_attempt = task
    attempt.run_rank(str(run_dir), first_attempt, token)


def _wait_for_submission(folder: Path) -> None:
    """Wait for the file that submitit moves into place once it knows that sbatch accepted the array.

    A job that the submitting command never learned of is cancelled and submitted again, so it must not start.
    """
    job_id = attempt.current_job_id(os.environ)
    file = folder / "submitit" / f"{job_id}" / f"{job_id}_submitted.pkl"
    deadline = time.monotonic() + WAIT_SECONDS
    while not file.exists():
        if time.monotonic() > deadline:
            sys.exit(
                f"error: {file} did not appear within {WAIT_SECONDS:.0f} s: the command that submitted it has died"
            )
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    main()
