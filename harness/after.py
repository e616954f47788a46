"""`python -m harness.after <study> <token>`: the last line of a batch script, when its srun has failed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from harness import events, job, outcome, submissions


def main() -> None:
    folder, token = Path(sys.argv[1]), sys.argv[2]
    submission = submissions.read(folder).get(token)
    if submission is not None:
        (run_id,) = submission.elements[int(os.environ.get("SLURM_ARRAY_TASK_ID", "0"))]
        run_dir = folder / "runs" / run_id
        mine = [d for d in events.attempt_dirs(run_dir) if outcome.read_job(d).get("submission") == token]
        if mine and not job.slurm_ends_it():
            # As run_rank counts them.
            attempt = int(mine[0].name.split("-")[1]) + int(os.environ.get("SLURM_RESTART_COUNT", "0"))
            job.without_word(run_dir, attempt, token, outcome.batch_words(folder, job.job_name(os.environ)))


if __name__ == "__main__":
    main()
