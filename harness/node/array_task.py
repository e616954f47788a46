"""`python -m harness.node.array_task <study> <token>`: supervises one rank of a job array task.

Which run to start is read from the submission's file.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from harness.core.system import disk
from harness.node import attempt, job
from harness.study import submissions

# How long to wait for the array's id to be recorded.
WAIT_SECONDS = 60.0
POLL_SECONDS = 0.5


def main() -> None:
    folder, token = Path(sys.argv[1]), sys.argv[2]
    try:
        if runs := runs_of_this_task(folder, token):
            ((run_dir, first_attempt),) = runs
            attempt.run_rank(str(run_dir), first_attempt, token)
    except OSError as error:
        if not disk.is_full(folder, error):
            raise
        print(f"{error.filename or folder}: {error.strerror}", file=sys.stderr)
        sys.exit(disk.FULL)  # all that will be known of it


def runs_of_this_task(folder: Path, token: str) -> list[tuple[Path, int]]:
    """Look up the runs of this array task; empty, with a message, if the job must not run.

    If Slurm accepts an array but its answer is lost, the array may be submitted again, and only the recorded one may
    run. So a job that starts before its id is recorded waits for that. It starts in any case after WAIT_SECONDS: sbatch
    is very slow, or the submitting command has died; re-running the command takes the job over.
    """
    own = (job.current_job_id(os.environ) or "").split("_")[0]
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        submission = submissions.find(folder, token)
        if submission is None or submission.job_id is not None or time.monotonic() > deadline:
            break
        time.sleep(POLL_SECONDS)
    runs = submissions.runs_of_array_task(folder, token, int(os.environ.get("SLURM_ARRAY_TASK_ID", "0")))
    if submission is not None and submission.job_id not in (None, own):
        print(f"nothing to do: the array was submitted again, as job {submission.job_id}", flush=True)
        return []
    if not runs:
        print(f"nothing to do: no run of {folder} belongs to this job anymore", flush=True)
    return runs


if __name__ == "__main__":
    main()
