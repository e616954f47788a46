"""Launches runs one after another inside an existing Slurm allocation, with srun or mpirun starting the ranks of each.

Used in two ways: `pack=true` or `cluster.mpi=mpirun`, where `python -m harness.launch.allocation <study> <token>
<starter> <srun arguments>` is the batch step of a job, and `cluster.scheduler=allocation`, for sbatch/headless.sh and
salloc.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness.core import environment_variables, events, run_files
from harness.core.errors import UserError
from harness.core.launchers import MPIRUN
from harness.core.system.ports import JOB_PORTS
from harness.launch import supervisors
from harness.launch.attempts import to_result
from harness.node.array_task import runs_of_this_task
from harness.node.attempt import finish_unreported, reason_to_skip
from harness.node.job import current_job_id, slurm_is_ending_job
from harness.plan.plan import Plan
from harness.study import outcome
from harness.study.study import Study
from harness.study.submissions import new_token

Report = Callable[[str, dict[str, Any] | None], None]


def launch(plan: Plan, study: Study, report: Report) -> None:
    """Run the whole plan inside this allocation. Raises UserError if it does not fit."""
    _check_fits(plan)
    token = new_token()
    for array in plan.arrays:
        for request in array.requests:
            attempt = study.prepare(request, token, 0)
            run_dir = study.run_dir(request.spec.run_id).absolute()
            result = _run(run_dir, attempt, token, array.resources.mpi, array.resources.srun_args)
            if result is None:
                raise KeyboardInterrupt
            report(request.spec.run_id, result)


def main() -> None:
    """Run the runs of one job one after another on the same nodes, skipping those that have a result.

    A failed run does not stop the others. A requeued job continues with the run that was interrupted.
    """
    folder, token, starter, *srun_args = sys.argv[1:]
    # Between runs too, this process outlives the signals by which Slurm announces a job's end. Not SIG_IGN, which srun
    # would inherit.
    for number in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(number, lambda *_: None)
    for run_dir, first in runs_of_this_task(Path(folder), token):
        if events.read_result(run_dir) is not None:
            continue
        if why := reason_to_skip(run_dir, first, token):
            print(f"nothing to do: {why}", flush=True)
            continue
        try:
            result = _run(run_dir, _next_attempt(run_dir, first), token, starter or None, srun_args)
        except KeyboardInterrupt:  # Slurm is ending the job
            result = None
        if result is None:
            sys.exit(1)


def _run(
    run_dir: Path, attempt: int, token: str, starter: str | None, srun_args: Sequence[str]
) -> dict[str, Any] | None:
    os.environ[environment_variables.RESTARTS_HERE] = "1"

    def start(number: int) -> str | None:
        attempt_dir = run_files.attempt_dir(run_dir, number)
        attempt_dir.mkdir(exist_ok=True)
        outcome.write_job(attempt_dir, token, current_job_id(os.environ))
        try:
            done = supervisors.run(run_dir, number, token, starter, srun_args, _port(run_dir, number), os.environ)
            output = outcome.batch_stderr_tail(run_dir.parents[1], current_job_id(os.environ))
            output = [outcome.mpirun_message(attempt_dir)] if starter == MPIRUN else output
        except UserError as error:
            done, output = False, [str(error)]
        if not done and slurm_is_ending_job():
            raise KeyboardInterrupt
        if not done:
            with contextlib.suppress(SystemExit):  # another attempt follows
                finish_unreported(run_dir, number, token, output)
        return os.environ.get("SLURM_JOB_ID")

    return to_result(run_dir, attempt, start)


def _next_attempt(run_dir: Path, first: int) -> int:
    """The attempt to make: the first one that has not begun."""
    begun = [run_files.attempt_number(d) for d in events.attempt_dirs(run_dir) if outcome.read_begin(d) is not None]
    return max([first - 1, *begun]) + 1


def _port(run_dir: Path, attempt: int) -> int:
    """Steps of one job follow each other at once: each gets a port of its own."""
    job = int(os.environ["SLURM_JOB_ID"])
    return JOB_PORTS[(job * 17 + int(run_dir.name[-12:], 16) + attempt) % len(JOB_PORTS)]


def _check_fits(plan: Plan) -> None:
    if "SLURM_JOB_ID" not in os.environ:
        raise UserError(
            "cluster.scheduler=allocation needs an allocation: start it inside `salloc`, or by sbatch/headless.sh"
        )
    nodes = int(os.environ.get("SLURM_JOB_NUM_NODES", "1"))
    tasks = os.environ.get("SLURM_NTASKS_PER_NODE") or os.environ.get("SLURM_TASKS_PER_NODE", "")
    match = re.match(r"\d+", tasks)
    per_node = int(match.group()) if match else None
    for request in plan.to_launch:
        p = request.spec.processes
        if p.nodes > nodes or (per_node is not None and p.ranks_per_node > per_node):
            raise UserError(
                f"gpus={request.spec.gpus} needs {p} ranks, this allocation has {nodes} x {per_node or '?'}; "
                "request more with sbatch --nodes, --ntasks-per-node and --gres, or use fewer gpus"
            )


if __name__ == "__main__":
    main()
