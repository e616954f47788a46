"""Launches through Slurm: one submitit job array per resource shape, then waits for the runs' results."""

from __future__ import annotations

import json
import math
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError

from harness import events, outcome, spec
from harness.errors import UserError
from harness.job import run_rank
from harness.plan import Array, Plan, Resources
from harness.study import Study

POLL_SECONDS = 5.0
# After a job has left the queue, its last files may take a moment to be seen through a shared file system.
FILE_SECONDS = 15.0
SIGNAL_SECONDS = 30
COMMAND_SECONDS = 120


def submit(plan: Plan, study: Study) -> list[str]:
    """Submits every array of the plan; gives the arrays' job ids. Raises UserError with Slurm's own words."""
    jobs: list[str] = []
    for array in plan.arrays:
        try:
            jobs.append(_submit(array, study))
        except UserError as error:
            before = f"; submitted before and going on: {', '.join(jobs)} (`scancel` ends them)" if jobs else ""
            raise UserError(f"{error}{before}") from None
    return jobs


def wait(plan: Plan, study: Study, report: Callable[[str, dict[str, Any] | None], None]) -> None:
    """Until every run of the plan, launched now or before, has a result; `report(run_id, result)` for each.

    A job that left the queue without a result gets one that says so, with Slurm's word for its end.
    """
    open_runs = {request.spec.run_id for request in plan.to_launch} | set(plan.queued)
    gone_since: dict[str, float] = {}
    while open_runs:
        for run_id in sorted(open_runs):
            result = study.result(run_id)
            if result is not None:
                open_runs.discard(run_id)
                report(run_id, result)
        if not open_runs:
            return
        jobs = {run_id: job_of(study.run_dir(run_id)) for run_id in open_runs}
        alive = in_queue(job for job in jobs.values() if job)
        if alive is not None:
            for run_id, job in jobs.items():
                if job in alive:
                    gone_since.pop(run_id, None)
                elif time.monotonic() - gone_since.setdefault(run_id, time.monotonic()) > FILE_SECONDS:
                    _write_lost(study.run_dir(run_id), job)
        time.sleep(POLL_SECONDS)


def queued(study: Study, run_ids: Iterable[str]) -> set[str]:
    """Those of the unfinished runs whose job is still pending or running: ONE call of squeue.

    Raises UserError where Slurm does not answer: to submit again blindly could run them twice.
    """
    jobs = {r: job_of(study.run_dir(r)) for r in run_ids if study.result(r) is None}
    wanted = [job for job in jobs.values() if job]
    if not wanted:
        return set()
    alive = in_queue(wanted)
    if alive is None:
        raise UserError("squeue does not answer, so it is not known which runs are still queued; try again later")
    return {run_id for run_id, job in jobs.items() if job in alive}


def job_of(run_dir: Path) -> str | None:
    """The job that the run's last attempt was submitted as."""
    attempts = events.attempt_dirs(run_dir)
    try:
        return str(json.loads((attempts[-1] / "job.json").read_text(encoding="utf-8"))["job_id"])
    except (IndexError, OSError, ValueError, KeyError):
        return None


def in_queue(jobs: Iterable[str]) -> set[str] | None:
    """Those of the jobs ('123_4') that squeue lists; None where squeue cannot be asked."""
    wanted = set(jobs)
    arrays = sorted({job.split("_")[0] for job in wanted})
    if not arrays:
        return set()
    try:
        # --me, and not --jobs: that fails as a whole when one of the jobs is already forgotten.
        listed = subprocess.run(
            ["squeue", "--me", "--array", "--noheader", "--format=%i"],
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return wanted & set(listed.stdout.split()) if listed.returncode == 0 else None


def array_parameters(resources: Resources) -> dict[str, Any]:
    """submitit's parameters for a shape (tests keep the sbatch text that comes of them as a golden file)."""
    placement = resources.placement
    extra: dict[str, Any] = {}
    gres = None
    if resources.gres:
        gres = ":".join(filter(None, (resources.gres, resources.gpu_type, str(placement.ranks_per_node))))
    for name, value in (("account", resources.account), ("qos", resources.qos), ("constraint", resources.constraint)):
        if value:
            extra[name] = value
    if resources.exclusive:
        extra["exclusive"] = True
    if resources.memory_per_node:
        extra["mem"] = resources.memory_per_node
    if resources.partition:
        extra["partition"] = resources.partition
    if gres:
        extra["gres"] = gres
    if resources.array_parallelism:
        extra["array_parallelism"] = resources.array_parallelism
    if resources.setup:
        extra["setup"] = list(resources.setup)
    return {
        "job_name": f"harness-{placement.world_size}gpu",
        "nodes": placement.nodes,
        "ntasks_per_node": placement.ranks_per_node,
        "cpus_per_task": resources.cpus_per_gpu,
        "time": math.ceil(resources.timeout_minutes),
        "signal_delay_s": SIGNAL_SECONDS,
        "srun_args": [
            # When one rank's watcher fails, the others' are ended at once.
            "--kill-on-bad-exit=1",
            # Since Slurm 22.05 srun does not take it over from sbatch, and would bind each rank to one core.
            f"--cpus-per-task={resources.cpus_per_gpu}",
            *resources.srun_args,
        ],
        **extra,
    }


def _submit(array: Array, study: Study) -> str:
    executor = submitit.SlurmExecutor(study.folder.absolute() / "submitit" / "%j")
    executor.update_parameters(**array_parameters(array.resources))
    run_dirs = [str(study.run_dir(r.spec.run_id).absolute()) for r in array.requests]
    attempts = [study.prepare(request) for request in array.requests]
    try:
        jobs = executor.map_array(run_rank, run_dirs, attempts)
    except (FailedSubmissionError, FailedJobError, OSError) as error:
        words = " ".join(str(error).split())
        raise UserError(
            f"Slurm refused the array for {array.resources.placement} ranks: {words}; "
            "correct the keys of `cluster`, or take cluster=local to run on this machine"
        ) from None
    for run_dir, attempt, job in zip(run_dirs, attempts, jobs, strict=True):
        spec.write_json(Path(run_dir) / f"attempt-{attempt}" / "job.json", {"job_id": job.job_id})
    return str(jobs[0].job_id.split("_")[0])


def _write_lost(run_dir: Path, job: str | None) -> None:
    attempts = events.attempt_dirs(run_dir)
    attempt = int(attempts[-1].name.split("-")[1])
    state = _accounting_state(job) if job else None
    reason = f"job {job} left the queue without a result" + (f"; Slurm says {state}" if state else "")
    events.write_result(
        run_dir, outcome.result(run_dir, attempt, events.FAILED, reason=reason, job_id=job, written_by="launcher")
    )


def _accounting_state(job: str) -> str | None:
    try:
        listed = subprocess.run(
            ["sacct", "-X", "-j", job, "--noheader", "--format=State%40"],
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return " ".join(listed.stdout.split()) or None
