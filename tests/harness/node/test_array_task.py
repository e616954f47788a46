"""A job array's task on the node, `python -m harness.node.array_task`, with Slurm's variables but not its daemons."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest
from project import Cli
from studies import EMULATED, SMALL, read_json, run_dirs, study_dir

from harness.study import outcome, submissions
from harness.study.submissions import Submission

pytestmark = pytest.mark.torch

JOB = {
    "SLURM_JOB_ID": "18",
    "SLURM_ARRAY_JOB_ID": "17",
    "SLURM_ARRAY_TASK_ID": "1",
    "SLURM_PROCID": "0",
    "SLURM_NTASKS": "1",
    "SLURM_TASKS_PER_NODE": "1",
    "SLURM_LOCALID": "0",
    "SLURM_JOB_NODELIST": "localhost",
}


def test_array_task_runs_the_next_attempt_of_its_run(cli: Cli, tmp_path: Path, torch_python: Path) -> None:
    done = cli("harness", "gpus=1", "cluster=local", *SMALL, *EMULATED)
    assert done.returncode == 0, done.stdout + done.stderr
    (run_dir,) = run_dirs(tmp_path)
    # Restored, for another attempt of the same run as the second element of an array.
    (run_dir / "result.json").unlink()
    shutil.rmtree(run_dir / "attempt-1")
    study, token = study_dir(tmp_path).absolute(), "0123456789"
    submissions.write(study, Submission(token, "17", (("another",), (run_dir.name,))))
    environment = {**os.environ, **JOB, "HARNESS_JOB_STARTED": str(time.time() - 5)}

    left = cli("harness.node.array_task", str(study), token, env=environment)
    assert left.returncode == 0
    assert "nothing to do" in left.stdout

    (run_dir / "attempt-3").mkdir()
    outcome.write_job(run_dir / "attempt-3", token, None, 1)
    # Slurm accepted the array twice, since its first answer was lost.
    unknown = cli("harness.node.array_task", str(study), token, env={**environment, "SLURM_ARRAY_JOB_ID": "16"})
    assert unknown.returncode == 0
    assert "submitted again, as job 17" in unknown.stdout
    # Slurm has restarted it once.
    ran = cli("harness.node.array_task", str(study), token, env={**environment, "SLURM_RESTART_COUNT": "1"})
    assert ran.returncode == 0, ran.stdout + ran.stderr
    result = read_json(run_dir / "result.json")
    assert (result["status"], result["attempt"], result["job_id"]) == ("completed", 4, "17_1")
    begin = read_json(run_dir / "attempt-4" / "begin.json")
    assert 5 <= begin["t"] - begin["job_started"] < 60
