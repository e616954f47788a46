"""`python -m harness.cancel results/<study>`: cancel the study's jobs in Slurm's queue, and no others; or stop its runs
on this machine."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.core.console_script import Parser
from harness.core.errors import UserError
from harness.slurm.client import Client, SlurmUnavailable
from harness.study import local_processes, run_status, submissions

# Job numbers are arguments of scancel: this stays far below the system's limit.
JOBS_PER_CALL = 1000
_LATER = "finished runs are kept; re-running the study's command starts the missing ones"


def main(argv: Sequence[str] | None = None, program: str = "python -m harness.cancel") -> int:
    """Return the exit code: 0 nothing of the study is left running, 1 Slurm refused, 2 invalid request or no answer."""
    parser = Parser(
        prog=program,
        description="Cancels the jobs of a study that are pending or running, and no others; without Slurm, stops the "
        "study's command. Runs that go on save their state first, as far as Slurm's KillWait lets them; the same "
        "command continues them.",
    )
    parser.add_argument("study", type=Path, help="the study's folder, results/<study>")
    arguments = parser.parse_args(argv)
    try:
        return _cancel(arguments.study)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _cancel(folder: Path) -> int:
    document = run_status.document(folder)
    clusters = {invocation["cluster"] for invocation in document["invocations"]}
    if "local" in clusters:
        _stop_local(folder, document)
    return _cancel_jobs(folder, document) if clusters != {"local"} else 0


def _stop_local(folder: Path, document: dict[str, Any]) -> None:
    # A command that waits for Slurm's jobs is left alone.
    last = document["invocations"][-1]["cluster"]
    runs = {run_id for invocation in document["invocations"] for run_id in invocation["runs"]}
    stopped = local_processes.stop(folder, sorted(runs), command=last == "local")
    if not stopped:
        print(f"nothing of study {document['study']} is running on this machine")
        return
    print(f"stopped study {document['study']} on this machine")
    print(_LATER)


def _cancel_jobs(folder: Path, document: dict[str, Any]) -> int:
    client = Client()
    try:
        queue = client.queue()
        known = submissions.read(folder)
        # Match the token in job names, to find also jobs whose submitter died before recording their number.
        ours = {job for job, queued in queue.items() if queued.name.rpartition("-")[2] in known}
        if not ours:
            print(f"no job of study {document['study']} is in the queue")
            return 0
        running = sum(queue[job].state in ("RUNNING", "COMPLETING") for job in ours)
        jobs = sorted(ours)
        refused = [
            words
            for start in range(0, len(jobs), JOBS_PER_CALL)
            if (words := client.cancel(jobs[start : start + JOBS_PER_CALL]))
        ]
    except SlurmUnavailable as error:
        raise UserError(
            f"Slurm does not answer ({error}); it is unknown whether anything was cancelled; try again later"
        ) from None
    if refused:
        print(f"error: Slurm did not cancel all of them: {'; '.join(refused)}", file=sys.stderr)
        return 1
    print(f"cancelled {len(jobs)} jobs of study {document['study']}: {running} running, {len(jobs) - running} pending")
    print(_LATER)
    return 0
