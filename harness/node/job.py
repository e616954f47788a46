"""The job that this process belongs to: a job of Slurm, or a process of this machine."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Mapping

from harness.core import environment_variables
from harness.core.system import programs
from harness.slurm.client import Client, Job, SlurmUnavailable

# How often to look whether the command that started a run on this machine is still there.
COMMAND_SECONDS = 1.0
# A healthy node starts a process within seconds.
NODES_SECONDS = 60.0
# How often Slurm checks its nodes.
NOTICE_SECONDS = 60.0
SLURM = Client(seconds=60, inside_job=True)


def slurm_is_ending_job() -> bool:
    """Return whether Slurm is ending this job, and will requeue it or knows why not."""
    job = _this_job()
    return job is not None and job.state != "RUNNING"


def current_job_id(environ: Mapping[str, str]) -> str | None:
    """The job id as Slurm's commands accept it: '123_4' for an array task."""
    if "SUBMITIT_LOCAL_JOB_ID" in environ:  # first, as in `from_launcher`: a local run may be inside an allocation
        return environ["SUBMITIT_LOCAL_JOB_ID"]
    if "SLURM_ARRAY_JOB_ID" in environ:
        return f"{environ['SLURM_ARRAY_JOB_ID']}_{environ['SLURM_ARRAY_TASK_ID']}"
    return environ.get("SLURM_JOB_ID")


def host_of(environ: Mapping[str, str]) -> str | None:
    """The machine of a run without Slurm, whose job is a process; None on Slurm."""
    return os.uname().nodename if "SUBMITIT_LOCAL_JOB_ID" in environ else None


def stop_without(command: int) -> None:
    """Make this process save and stop when the command that started it dies, since its parent would live on."""

    def watch() -> None:
        while True:
            time.sleep(COMMAND_SECONDS)
            if not programs.exists(command):
                # As Ctrl-C would; again, until the supervisor has its handlers.
                os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def job_started(environ: Mapping[str, str]) -> float | None:
    """Start of the batch script in unix seconds, if the job consists of this run only."""
    text = "" if environment_variables.RESTARTS_HERE in environ else environ.get(environment_variables.JOB_STARTED, "")
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else None


def requeue() -> str | None:
    """Requeue this job; Slurm kills it soon after. Returns Slurm's error message on failure."""
    if "SUBMITIT_LOCAL_JOB_ID" in os.environ or "SLURM_JOB_ID" not in os.environ:
        return "it is not a Slurm job"
    if (job := _this_job()) is not None and job.state == "CANCELLED":
        return "it was cancelled"
    refused = SLURM.requeue(os.environ["SLURM_JOB_ID"])
    # After losing a node, Slurm may have requeued the job already.
    return None if refused and "pending execution" in refused else refused


def preempted() -> bool:
    """Return whether the warning signal announced a preemption rather than the time limit."""
    job = _this_job()
    return job is not None and job.preempt_time is not None


def all_nodes_answer() -> bool:
    """Return whether srun can start a process on every node of this job."""
    try:
        return Client(seconds=NODES_SECONDS).nodes_answer(int(os.environ.get("SLURM_JOB_NUM_NODES", "1")))
    except SlurmUnavailable:
        return False


def slurmd_timeout() -> float:
    """Seconds after which Slurm has noticed a node that does not answer; 0 without Slurm."""
    if "SUBMITIT_LOCAL_JOB_ID" in os.environ or "SLURM_JOB_ID" not in os.environ:
        return 0.0
    try:
        match = re.match(r"\d+", SLURM.settings().get("SlurmdTimeout", ""))
    except SlurmUnavailable:
        match = None
    return int(match[0]) + NOTICE_SECONDS if match else 0.0


def _this_job() -> Job | None:
    """Slurm's record of this job; None if there is none or Slurm does not answer."""
    try:
        return SLURM.job(os.environ.get("SLURM_JOB_ID", ""))
    except SlurmUnavailable:
        return None
