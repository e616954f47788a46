"""Launches on this machine, one run after another, through submitit's local executor."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import submitit

from harness import events, outcome
from harness.job import run_rank
from harness.plan import Plan, Request
from harness.study import Study
from harness.worker.rendezvous import PORT_VARIABLE

POLL_SECONDS = 0.1
# The rank's own watcher ends it at the limit; submitit's limit stands behind it.
SPARE_MINUTES = 2
INTERRUPT_SECONDS = 10


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
    attempt = study.prepare(request)
    run_dir = study.run_dir(request.spec.run_id).absolute()
    executor = submitit.LocalExecutor(study.folder.absolute() / "submitit" / "%j")
    executor.update_parameters(
        tasks_per_node=request.resources.placement.ranks_per_node,
        nodes=1,
        timeout_min=request.resources.timeout_minutes + SPARE_MINUTES,
    )
    os.environ[PORT_VARIABLE] = str(_free_port())
    # The controller is to end its tasks on our word, in order, and not to be hit by the terminal's Ctrl-C itself.
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        job = executor.submit(run_rank, str(run_dir), attempt)
    finally:
        signal.signal(signal.SIGINT, previous)
    try:
        while not job.done():
            time.sleep(POLL_SECONDS)
    except KeyboardInterrupt:
        _end(job)
        raise
    return _result(run_dir, attempt, job.job_id)


def _result(run_dir: Path, attempt: int, job_id: str) -> dict[str, Any] | None:
    if events.read_result(run_dir) is None:
        reason = "the run's processes ended without a word; were they killed?"
        events.write_result(
            run_dir,
            outcome.result(run_dir, attempt, events.FAILED, reason=reason, job_id=job_id, written_by="launcher"),
        )
    return events.read_result(run_dir)


def _end(job: Any) -> None:
    """Ends the job's ranks and waits for them. Repeated, because a task that is still starting misses the signal."""
    deadline = time.monotonic() + INTERRUPT_SECONDS
    while not job.done() and time.monotonic() < deadline:
        job._process.send_signal(signal.SIGTERM)
        time.sleep(1)
    if not job.done():
        job._process.kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _as_interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
