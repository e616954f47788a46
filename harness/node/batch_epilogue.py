"""`python -m harness.node.batch_epilogue <study> <token>`: the last line of a batch script, when its srun has
failed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from harness.node import attempt
from harness.study import outcome, submissions


def main() -> None:
    folder, token = Path(sys.argv[1]), sys.argv[2]
    mine = submissions.of_element(folder, token, int(os.environ.get("SLURM_ARRAY_TASK_ID", "0")))
    if mine is not None and not attempt.slurm_ends_it():
        run_dir, first_attempt = mine
        # As run_rank counts them.
        number = first_attempt + int(os.environ.get("SLURM_RESTART_COUNT", "0"))
        attempt.without_word(run_dir, number, token, outcome.batch_words(folder, attempt.job_name(os.environ)))


if __name__ == "__main__":
    main()
