"""Launches through Slurm: submitit job arrays, one or more per resource shape; then waits for the runs' results."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import math
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import submitit
from submitit.core.utils import FailedJobError, FailedSubmissionError

from harness.core import events, run_files
from harness.core.errors import UserError
from harness.launch.allocation import run_element
from harness.launch.options import advice, array_parameters, element_command, site_options, trial_options
from harness.node import stage
from harness.node.attempt import run_rank
from harness.plan.plan import Array, Plan
from harness.slurm.client import Client, Queued, SlurmUnavailable, is_unavailable, words
from harness.study import outcome, submissions
from harness.study.study import Study
from harness.study.submissions import Submission

# Results are files: looking for them asks nothing of Slurm.
POLL_SECONDS = 5.0
QUEUE_SECONDS = 20.0
ACCOUNTING_SECONDS = 60.0
# After a job has left the queue, its last files may take a moment to be seen through a shared file system.
FILE_SECONDS = 15.0
# How long a controller that does not answer is waited for while submitting.
AWAY_SECONDS = 600.0
RETRY_SECONDS = 5.0
# Slurm's own default, where the controller does not say.
MAX_ARRAY_SIZE = 1001

# Reasons for which a pending job does not start by itself.
_HELD = r"held|BadConstraints|NeverSatisfied|PartitionTimeLimit|PartitionNodeLimit|InvalidAccount|InvalidQOS"

Say = Callable[[str], None]

CLIENT = Client()


class Submitter:
    """Submits a plan, array by array; what a limit of the site keeps back, later."""

    def __init__(self, plan: Plan, study: Study, say: Say) -> None:
        """Asks Slurm about every shape before anything is submitted. Raises UserError with Slurm's own words."""
        self.study = study
        self.say = say
        self.submitted: dict[str, Submission] = {}
        self.gave_away = ""
        self.chunks: deque[Array] = deque()
        limits = [array.resources.max_submit for array in plan.arrays if array.resources.max_submit]
        self.allowed = min(limits, default=None)
        if plan.arrays:
            _ask_first(plan.arrays, say)
            size = self._wait_for(lambda: int(CLIENT.settings().get("MaxArraySize") or MAX_ARRAY_SIZE))
            # At least one element: MaxArraySize=0 means that there are no arrays here.
            largest = max(1, min(size, self.allowed or size))
            self.chunks.extend(chunk for array in plan.arrays for chunk in chunks(array, largest))

    @property
    def kept_back(self) -> int:
        """Runs that are not submitted yet."""
        return sum(len(array.requests) for array in self.chunks)

    def submit(self, in_queue: int) -> None:
        """Submits what fits beside `in_queue` jobs of this study. Raises UserError; what was submitted goes on."""
        while self.chunks:
            room = None if self.allowed is None else self.allowed - in_queue
            if room is not None and room < 1:
                return
            if room is not None and room < len(self.chunks[0].elements):
                chunk = self.chunks.popleft()
                self.chunks.extendleft(reversed(chunks(chunk, room)))
            array = self.chunks[0]
            submission = self._submit(array)
            self.chunks.popleft()
            self.submitted[submission.token] = submission
            in_queue += len(array.elements)
            shape = array.resources.placement
            self.say(f"submitted job {submission.job_id}: {len(array.requests)} runs on {shape} ranks")

    def _submit(self, array: Array) -> Submission:
        environment = array.resources.staged
        archive = stage.pack(self.study.folder.absolute(), Path(environment), self.say) if environment else None
        token = submissions.new_token()
        elements = tuple(tuple(r.spec.run_id for r in element) for element in array.elements)
        submission = Submission(token, None, elements)
        # Before sbatch is asked: should this process die, the jobs are found again by the token in their name.
        self._write(submission)
        run_dirs = [[str(self.study.run_dir(r.spec.run_id).absolute()) for r in element] for element in array.elements]
        attempts = [
            [self.study.prepare(request, token, number) for request in element]
            for number, element in enumerate(array.elements)
        ]
        executor = _Executor(self.study.folder.absolute() / "submitit" / "%j")
        if not array.in_batch_step:
            executor.command = element_command(self.study.folder.absolute(), token)
        executor.update_parameters(**array_parameters(array, token, self.study.folder.absolute(), archive))
        while True:
            try:
                # submitit prints what it raises too.
                with contextlib.redirect_stderr(io.StringIO()), self._own_options(array):
                    jobs = _map(executor, array, run_dirs, attempts, token)
                job_id = str(jobs[0].job_id.split("_")[0])
                break
            except (FailedSubmissionError, FailedJobError, OSError) as error:
                said = words(_stderr_of(error))
                if not isinstance(error, OSError) and is_unavailable(said):
                    self._say_away(said)
                    # It may have taken the array all the same, without submitit knowing: to ask again would run it
                    # twice. Its jobs still wait for their pickles (harness/node/array_task.py), so none has begun.
                    queue = self._wait_for(CLIENT.queue)
                    for taken in submissions.adopt({token: submission}, queue):
                        self._wait_for(functools.partial(CLIENT.cancel, [str(taken.job_id)]))
                    time.sleep(RETRY_SECONDS)
                    continue
                submissions.forget(self.study.folder, submission)
                for request, attempt in zip(array.requests, itertools.chain(*attempts), strict=True):
                    self.study.withdraw(request, attempt)
                raise UserError(self._refused(array, said)) from None
        submission = replace(submission, job_id=job_id)
        self._write(submission)
        return submission

    @contextlib.contextmanager
    def _own_options(self, array: Array) -> Iterator[None]:
        """Without the SBATCH_* variables that would overrule what the configuration asks for; others are defaults."""
        own = {"array-inx", "job-name", "open-mode", "requeue", "no-requeue", "signal", "timelimit"}
        own |= {{"mem": "mem-per-node"}.get(name, name) for name in site_options(array.resources)}
        names = {f"SBATCH_{name.upper().replace('-', '_')}" for name in own}
        overruled = {name: os.environ.pop(name) for name in names & os.environ.keys()}
        try:
            for name, value in sorted(overruled.items()):
                self.say(f"{name}={value} of the environment is not used: the configuration sets it")
            yield
        finally:
            os.environ.update(overruled)

    def _write(self, submission: Submission) -> None:
        try:
            submissions.write(self.study.folder, submission)
        except OSError as error:
            raise UserError(
                f"{self.study.folder} cannot be written: {error.strerror}; choose another results=<folder>"
            ) from None

    def _refused(self, array: Array, said: str) -> str:
        jobs = [str(s.job_id) for s in self.submitted.values()]
        before = f"; submitted before and going on: {', '.join(jobs)} (`scancel` ends them)" if jobs else ""
        return f"Slurm refused the array for {array.resources.placement} ranks: {said}; {advice(said)}{before}"

    def _wait_for(self, ask: Callable[[], Any]) -> Any:
        """What `ask` gives once Slurm answers. Raises UserError when it stays away."""
        deadline = time.monotonic() + AWAY_SECONDS
        while True:
            try:
                return ask()
            except SlurmUnavailable as error:
                self._say_away(str(error))
                if time.monotonic() > deadline:
                    raise UserError(
                        f"Slurm has not answered for {AWAY_SECONDS / 60:.0f} min ({error}); try again later: the same "
                        "command submits what is missing"
                    ) from None
                time.sleep(RETRY_SECONDS)

    def _say_away(self, said: str) -> None:
        if said != self.gave_away:
            self.gave_away = said
            self.say(f"Slurm does not answer ({said}); waiting for it, up to {AWAY_SECONDS / 60:.0f} min")


def wait(
    plan: Plan, study: Study, submitter: Submitter, report: Callable[[str, dict[str, Any] | None], None], say: Say
) -> None:
    """Until every run of the plan, launched now or before, has a result; `report(run_id, result)` for each.

    A job that left the queue without a result gets one that says so, with Slurm's word for its end. Results are looked
    for every 5 s, the queue every 20 s, the accounting at most once a minute, and only when a job was lost.
    """
    open_runs = {request.spec.run_id for request in plan.to_launch} | set(plan.queued)
    gone_since: dict[str, float] = {}
    asked_queue = time.monotonic()
    asked_accounting = -math.inf
    away = False
    held: set[str] = set()
    while True:
        for run_id in sorted(open_runs):
            if (result := study.result(run_id)) is not None:
                open_runs.discard(run_id)
                report(run_id, result)
        if not open_runs:
            return
        now = time.monotonic()
        if now > asked_queue + QUEUE_SECONDS:
            asked_queue = now
            try:
                queue = CLIENT.queue()
                away = False
            except SlurmUnavailable as error:
                if not away:
                    say(f"Slurm does not answer ({error}); the runs go on, and so does the waiting")
                away = True
                queue = None
            if queue is not None:
                _say_held(queue.values(), held, say)
                jobs = submissions.jobs(study.folder, open_runs)
                kept_back = {r.spec.run_id for array in submitter.chunks for r in array.requests}
                alive = {r for r, job in jobs.items() if job in queue or r in kept_back}
                for run_id in alive:
                    gone_since.pop(run_id, None)
                for run_id in open_runs - alive:
                    gone_since.setdefault(run_id, now)
                submitter.submit(len({jobs[r] for r in alive - kept_back}))
        lost = {r for r, since in gone_since.items() if r in open_runs and now > since + FILE_SECONDS}
        if lost and now > asked_accounting + ACCOUNTING_SECONDS and not away:
            asked_accounting = now
            for run_id in sorted(lost):
                gone_since.pop(run_id)
            for run_id, result in _write_lost(study, lost):
                open_runs.discard(run_id)
                report(run_id, result)
        time.sleep(POLL_SECONDS)


def _say_held(queue: Iterable[Queued], told: set[str], say: Say) -> None:
    """Jobs of the harness that will not start by themselves: once each."""
    for job in queue:
        if job.state == "PENDING" and job.name.startswith("harness-") and re.search(_HELD, job.reason, re.IGNORECASE):
            if job.job not in told:
                say(
                    f"job {job.job} will not start by itself, Slurm says {job.reason}: `scontrol release {job.job}`, "
                    "or end it with harness.cancel"
                )
            told.add(job.job)


def queued(study: Study, run_ids: Sequence[str], say: Say) -> set[str]:
    """Those of the unfinished runs whose job is still pending or running: ONE call of squeue.

    Raises UserError where Slurm does not answer: to submit again blindly could run them twice.
    """
    known = submissions.read(study.folder)
    jobs = submissions.unfinished_jobs(study.folder, run_ids)
    if not jobs and all(s.job_id is not None for s in known.values()):
        return set()
    try:
        queue = CLIENT.queue()
    except SlurmUnavailable as error:
        raise UserError(
            f"Slurm does not answer ({error}), so it is not known which runs are still queued; try again later"
        ) from None
    for found in submissions.adopt(known, queue):
        say(f"job {found.job_id} was submitted by a command that died before it could note so; it is taken over")
        submissions.write(study.folder, found)
        jobs = submissions.unfinished_jobs(study.folder, run_ids)
    return {run_id for run_id, job in jobs.items() if job in queue}


def chunks(array: Array, largest: int) -> list[Array]:
    """The array in pieces of at most `largest` jobs."""
    starts = range(0, len(array.elements), largest)
    return [replace(array, elements=array.elements[start : start + largest]) for start in starts]


def _ask_first(arrays: Sequence[Array], say: Say) -> None:
    """Has Slurm refuse before anything is submitted, and not after half of it."""
    for array in arrays:
        partition = array.resources.partition
        try:
            refused = CLIENT.refusal(trial_options(array.resources))
        except SlurmUnavailable as error:
            say(f"Slurm cannot be asked beforehand ({error})")
            return
        if refused and re.search("node configuration is not available", refused) and CLIENT.nodes_out(partition):
            # --test-only looks at the nodes that are up; sbatch itself would queue the job until others are back.
            say(f"Slurm could not start {array.resources.placement} ranks now ({refused}): nodes are down or drained")
        elif refused:
            raise UserError(
                f"Slurm would refuse the array for {array.resources.placement} ranks: {refused}; {advice(refused)}; "
                "nothing was submitted"
            )


class _Executor(submitit.SlurmExecutor):
    """submitit's, where each task may run another command than submitit's own, which loads a pickle and calls it."""

    command: str | None = None

    @property
    def _submitit_command_str(self) -> str:
        return self.command or str(super()._submitit_command_str)


def _map(
    executor: submitit.SlurmExecutor,
    array: Array,
    run_dirs: list[list[str]],
    attempts: list[list[int]],
    token: str,
) -> list[submitit.Job[Any]]:
    tokens = [token] * len(run_dirs)
    if array.in_batch_step:
        starters, arguments = [array.resources.mpi] * len(run_dirs), [list(array.resources.srun_args)] * len(run_dirs)
        return list(executor.map_array(run_element, run_dirs, attempts, tokens, starters, arguments))
    first = [dirs[0] for dirs in run_dirs], [numbers[0] for numbers in attempts]
    return list(executor.map_array(run_rank, *first, tokens))


def _stderr_of(error: Exception) -> str:
    """What sbatch wrote; submitit wraps it in what it knows of subprocesses."""
    return re.sub(r"\s*-*\s*Command '.*", "", str(error), flags=re.DOTALL) or str(error)


def _write_lost(study: Study, run_ids: set[str]) -> list[tuple[str, dict[str, Any] | None]]:
    """Results for runs whose job left without one: ONE call of sacct. Slurm's word stands in the reason."""
    jobs = submissions.jobs(study.folder, run_ids)
    try:
        states = CLIENT.accounting(job for job in jobs.values() if job)
    except SlurmUnavailable:
        states = {}
    written: list[tuple[str, dict[str, Any] | None]] = []
    for run_id in sorted(run_ids):
        run_dir, job = study.run_dir(run_id), jobs[run_id]
        reason = outcome.lost_reason(run_dir, job, states.get(job or ""))
        attempt = run_files.attempt_number(events.attempt_dirs(run_dir)[-1])
        result = outcome.result(run_dir, attempt, events.FAILED, reason=reason, job_id=job, written_by="launcher")
        if job and not result["stderr_tail"]:  # the ranks never began: the batch script may say why
            result["stderr_tail"] = outcome.batch_stderr_tail(study.folder, job)
        try:
            events.write_result(run_dir, result)
            written.append((run_id, study.result(run_id)))
        except OSError as error:
            note = f"{reason}; result.json cannot be written: {error.strerror}"
            written.append((run_id, {**result, "reason": note}))
    return written
