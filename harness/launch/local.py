"""Launches runs on this machine one after another, with submitit's local executor or mpirun."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import submitit

from harness.core import environment_variables
from harness.core.launchers import MPIRUN
from harness.core.system.ports import held_port
from harness.launch import supervisors
from harness.launch.attempts import to_result
from harness.node.attempt import run_attempt
from harness.plan.plan import Plan, Request
from harness.study import local_processes
from harness.study.study import Study
from harness.study.submissions import new_token

POLL_SECONDS = 0.1
# Margin of submitit's time limit over that of the rank's supervisor, which acts first.
MARGIN_MINUTES = 2
# What submitit replaces in the paths of its files: ids of jobs and tasks.
PLACEHOLDERS = "%[jtaA]"
# Longer than a supervisor gives its rank to save and exit.
INTERRUPT_SECONDS = 30


def launch(plan: Plan, study: Study, report: Callable[[str, dict[str, Any] | None], None]) -> None:
    """Run the whole plan, calling `report(run_id, result)` after each run. A failed run does not stop the others.

    Raises:
        KeyboardInterrupt: after the ranks of the current run have ended. Re-running the command resumes the study.
    """
    previous = signal.signal(signal.SIGTERM, _as_interrupt)
    try:
        for request in plan.to_launch:
            report(request.spec.run_id, run(request, study))
    finally:
        signal.signal(signal.SIGTERM, previous)


def run(request: Request, study: Study) -> dict[str, Any] | None:
    """Run one request to its end and return its result."""
    token = new_token()
    run_dir = study.run_dir(request.spec.run_id).absolute()
    local_processes.wait_for_end(run_dir)
    attempt = study.prepare(request, token, 0)
    os.environ[environment_variables.RESTARTS_HERE] = "1"
    start = _mpirun if request.resources.mpi else _start
    result = to_result(run_dir, attempt, lambda number: start(request, study, run_dir, number, token))
    if result is None:  # the run's processes were stopped by someone else
        raise KeyboardInterrupt
    return result


def _start(request: Request, study: Study, run_dir: Path, attempt: int, token: str) -> str:
    # A path known before the job starts: submitit creates the folder named after the job id only once the job has
    # started, and on a busy machine the job opens its logs earlier.
    folder = study.folder.absolute() / "submitit" / f"{token}-{attempt}"
    executor = submitit.LocalExecutor(folder)
    executor.update_parameters(
        tasks_per_node=request.resources.tasks_per_node + request.resources.server_nodes,
        nodes=1,
        timeout_min=request.resources.timeout_minutes + MARGIN_MINUTES,
    )
    with held_port() as port:
        os.environ[environment_variables.MASTER_PORT] = str(port)
        os.environ[environment_variables.COMMAND] = str(os.getpid())
        # This process stops the controller's tasks in order; the terminal's Ctrl-C must not reach them directly.
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            job = executor.submit(run_attempt, str(run_dir), attempt, token)
        finally:
            signal.signal(signal.SIGINT, previous)
        try:
            while not job.done():
                time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            _stop(job)
            raise
        return str(job.job_id)


def _mpirun(_request: Request, _study: Study, run_dir: Path, attempt: int, token: str) -> str:
    # Hides an allocation that this shell may be part of: the run did not ask for it.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    job_id = str(os.getpid())
    with held_port() as port:
        supervisors.run(run_dir, attempt, token, MPIRUN, (), port, {**environ, "SUBMITIT_LOCAL_JOB_ID": job_id})
    return job_id


def _stop(job: Any) -> None:
    """Make the job's ranks save and exit, and wait for them; a second Ctrl-C kills them.

    The signal is repeated because a task that is still starting misses it.
    """
    deadline = time.monotonic() + INTERRUPT_SECONDS
    try:
        while not job.done() and time.monotonic() < deadline:
            job._process.send_signal(signal.SIGTERM)
            time.sleep(1)
    except KeyboardInterrupt:
        pass
    if not job.done():
        job._process.kill()


def _as_interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
