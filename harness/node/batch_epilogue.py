"""`python -m harness.node.batch_epilogue <study> <token> [<exit code>]`: last line of a batch script, run when its srun
failed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from harness.core.system import disk
from harness.node import attempt, job
from harness.study import outcome, submissions


def main() -> None:
    folder, token = Path(sys.argv[1]), sys.argv[2]
    try:
        _finish(folder, token)
    except OSError as error:
        if not disk.is_full(folder, error):
            raise
        sys.exit(disk.FULL)  # which becomes the job's exit code


def _finish(folder: Path, token: str) -> None:
    runs = submissions.runs_of_array_task(folder, token, int(os.environ.get("SLURM_ARRAY_TASK_ID", "0")))
    if runs and not job.slurm_is_ending_job():
        ((run_dir, first_attempt),) = runs
        # The same numbering as in run_rank.
        number = first_attempt + int(os.environ.get("SLURM_RESTART_COUNT", "0"))
        output = outcome.batch_stderr_tail(folder, job.current_job_id(os.environ))
        if sys.argv[3:] == [str(disk.FULL)]:
            output.append(disk.NO_SPACE)  # so it could not be printed
        attempt.finish_unreported(run_dir, number, token, output)


if __name__ == "__main__":
    main()
