"""`python -m harness.node.array_task <study> <token>`: a task of a job array's element, on the node. It watches one
rank.

submitit's own entry would import submitit, NumPy and asyncio into each of these processes first. What it has to say,
which run of the submission this element is, stands in the submission's file.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from harness.node import attempt
from harness.study import submissions

# As long as submitit waits.
WAIT_SECONDS = 60.0
POLL_SECONDS = 0.2


def main() -> None:
    folder, token = Path(sys.argv[1]), sys.argv[2]
    _wait_for_leave(folder)
    mine = submissions.of_element(folder, token, int(os.environ.get("SLURM_ARRAY_TASK_ID", "0")))
    if mine is None:
        print(f"nothing to do: no run of {folder} belongs to this job any more", flush=True)
        return
    run_dir, first_attempt = mine
    attempt.run_rank(str(run_dir), first_attempt, token)


def _wait_for_leave(folder: Path) -> None:
    """Until submitit has put the element's file into its place, which it does once it knows that sbatch took the array:
    one of which the command never learned is cancelled and submitted again, and must not have begun."""
    job_id = attempt.job_name(os.environ)
    file = folder / "submitit" / f"{job_id}" / f"{job_id}_submitted.pkl"
    deadline = time.monotonic() + WAIT_SECONDS
    while not file.exists():
        if time.monotonic() > deadline:
            sys.exit(f"error: {file} did not come in {WAIT_SECONDS:.0f} s: the command that submitted this job died")
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    main()
