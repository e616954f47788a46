"""`python -m harness.after <study> <token>`: the last line of a batch script, when its srun has failed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from harness import job, outcome, submissions


def main() -> None:
    folder, token = Path(sys.argv[1]), sys.argv[2]
    submission = submissions.read(folder).get(token)
    if submission is not None:
        (run_id,) = submission.elements[int(os.environ.get("SLURM_ARRAY_TASK_ID", "0"))]
        job.without_word(folder / "runs" / run_id, token, outcome.batch_words(folder, job.job_name(os.environ)))


if __name__ == "__main__":
    main()
