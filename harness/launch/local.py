"""Launches on this machine, one run after another, through submitit's local executor, or by mpirun."""

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
from harness.core.ports import held_port
from harness.launch import supervisors
from harness.launch.attempts import to_result
from harness.node.attempt import run_attempt
from harness.plan.plan import Plan, Request
from harness.study.study import Study
from harness.study.submissions import new_token

POLL_SECONDS = 0.1
# The rank's own watcher ends it at the limit; submitit's limit stands behind it.
SPARE_MINUTES = 2
# Longer than a rank's watcher gives it to save and leave.
INTERRUPT_SECONDS = 30


def launch(plan: Plan, study: Study, report: Callable[[str, dict[str, Any] | None], None]) -> None:
    """Runs everything in the plan; `report(run_id, result)` after each run. A failed run does not stop the others.

    Raises KeyboardInterrupt after the current run's ranks have ended; the same command continues the study.
    """
    previous = signal.signal(signal.SIGTERM, _as_interrupt)
    try:
        for request in plan.to_launch:
            report(request.spec.run_id, run(request, study))
    finally:
        signal.signal(signal.SIGTERM, previous)


def run(request: Request, study: Study) -> dict[str, Any] | None:
    """One run, to its end; gives its result."""
    token = new_token()
    attempt = study.prepare(request, token, 0)
    run_dir = study.run_dir(request.spec.run_id).absolute()
    os.environ[environment_variables.RESTARTS_HERE] = "1"
    start = _mpirun if request.resources.mpi else _start
    result = to_result(run_dir, attempt, lambda number: start(request, study, run_dir, number, token))
    if result is None:  # somebody told the run's processes to end, and not this one
        raise KeyboardInterrupt
    return result


def _start(request: Request, study: Study, run_dir: Path, attempt: int, token: str) -> str:
    # A folder that is known before the job is: submitit makes one of the job's number only once the job has started,
    # and on a busy machine the job opens its logs there first.
    folder = study.folder.absolute() / "submitit" / f"{token}-{attempt}"
    executor = submitit.LocalExecutor(folder)
    executor.update_parameters(
        tasks_per_node=request.resources.placement.ranks_per_node + request.resources.server_nodes,
        nodes=1,
        timeout_min=request.resources.timeout_minutes + SPARE_MINUTES,
    )
    with held_port() as port:
        os.environ[environment_variables.MASTER_PORT] = str(port)
        # The controller is to end its tasks on our word, in order, and not to be hit by the terminal's Ctrl-C itself.
        previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            job = executor.submit(run_attempt, str(run_dir), attempt, token)
        finally:
            signal.signal(signal.SIGINT, previous)
        try:
            while not job.done():
                time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            _end(job)
            raise
        return str(job.job_id)


def _mpirun(_request: Request, _study: Study, run_dir: Path, attempt: int, token: str) -> str:
    # An allocation of Slurm that this shell may be in is not what the run asked for.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    job_id = str(os.getpid())
    with held_port() as port:
        supervisors.run(run_dir, attempt, token, MPIRUN, (), port, {**environ, "SUBMITIT_LOCAL_JOB_ID": job_id})
    return job_id


def _end(job: Any) -> None:
    """Tells the job's ranks to save and leave, and waits for them. Repeated, because a task that is still starting
    misses the signal. A second Ctrl-C ends them at once."""
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
