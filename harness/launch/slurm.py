"""Launches through Slurm: submits job arrays, one or more per resource shape, then waits for the runs' results."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.core import events, run_files
from harness.core.errors import UserError
from harness.launch.options import advice, batch_script, site_options, trial_options
from harness.node import stage
from harness.plan.plan import Array, Plan
from harness.slurm.client import Client, Queued, SlurmRefused, SlurmUnavailable, is_unavailable
from harness.study import outcome, submissions
from harness.study.study import Study
from harness.study.submissions import Submission

# Polling for results reads files only and does not load Slurm.
POLL_SECONDS = 5.0
QUEUE_SECONDS = 20.0
ACCOUNTING_SECONDS = 60.0
# Delay for the last files of a finished job to become visible on a shared file system.
FILE_SECONDS = 15.0
# How long to wait for an unresponsive controller while submitting.
UNAVAILABLE_SECONDS = 600.0
RETRY_SECONDS = 5.0
# Slurm's default, used if the controller does not report one.
MAX_ARRAY_SIZE = 1001

# What the client says of sacct that does not end.
_AWAY = r"did not answer within"
# Reasons for which a pending job will not start by itself.
_HELD = r"held|BadConstraints|NeverSatisfied|PartitionTimeLimit|PartitionNodeLimit|InvalidAccount|InvalidQOS"

Say = Callable[[str], None]

CLIENT = Client()


class Submitter:
    """Submits a plan array by array, holding back what exceeds the site's submit limit."""

    def __init__(self, plan: Plan, study: Study, say: Say) -> None:
        """Have Slurm validate every resource shape before anything is submitted. Raises UserError quoting Slurm."""
        self.study = study
        self.say = say
        self.submitted: dict[str, Submission] = {}
        self.last_error = ""
        self.chunks: deque[Array] = deque()
        limits = [array.resources.max_submit for array in plan.arrays if array.resources.max_submit]
        self.allowed = min(limits, default=None)
        if plan.arrays:
            study.check_folder("Slurm", "%")
            _check_accepted(plan.arrays, say)
            size = self._wait_for(lambda: int(CLIENT.settings().get("MaxArraySize") or MAX_ARRAY_SIZE))
            # MaxArraySize=0 disables arrays; a single task still works.
            largest = max(1, min(size, self.allowed or size))
            self.chunks.extend(chunk for array in plan.arrays for chunk in chunks(array, largest))

    @property
    def held_back(self) -> int:
        """Number of runs not submitted yet."""
        return sum(len(array.requests) for array in self.chunks)

    def submit(self, in_queue: int) -> None:
        """Submit what fits next to `in_queue` jobs of this study. Raises UserError; submitted jobs keep running."""
        while self.chunks:
            free = None if self.allowed is None else self.allowed - in_queue
            if free is not None and free < 1:
                return
            if free is not None and free < len(self.chunks[0].jobs):
                chunk = self.chunks.popleft()
                self.chunks.extendleft(reversed(chunks(chunk, free)))
            array = self.chunks[0]
            submission = self._submit(array)
            self.chunks.popleft()
            self.submitted[submission.token] = submission
            in_queue += len(array.jobs)
            shape = array.resources.placement
            self.say(f"submitted job {submission.job_id}: {len(array.requests)} runs on {shape} ranks")

    def _submit(self, array: Array) -> Submission:
        environment = array.resources.staged
        archive = stage.pack(self.study.folder.absolute(), Path(environment), self.say) if environment else None
        token = submissions.new_token()
        submission = Submission(token, None, tuple(tuple(r.spec.run_id for r in job) for job in array.jobs))
        # Written before calling sbatch: if this process dies, the jobs can be found by the token in their name.
        _write(self.study.folder, submission)
        attempts = [
            [self.study.prepare(request, token, index) for request in job] for index, job in enumerate(array.jobs)
        ]
        script = batch_script(array, token, self.study.folder.absolute(), archive)
        try:
            with self._without_overrides(array):
                job_id = self._sbatch(submission, script)
        except SlurmRefused as error:
            submissions.forget(self.study.folder, submission)
            for request, attempt in zip(array.requests, itertools.chain(*attempts), strict=True):
                self.study.withdraw(request, attempt)
            raise UserError(self._refused(array, str(error))) from None
        submission = replace(submission, job_id=job_id)
        _write(self.study.folder, submission)
        return submission

    def _sbatch(self, submission: Submission, script: str) -> str:
        """Submit the script and return the job id. Raises SlurmRefused, or UserError if Slurm does not answer."""
        folder = submissions.log_folder(self.study.folder.absolute(), submission.token)
        file = folder / "submission.sh"
        try:
            folder.mkdir(parents=True)
            file.write_text(script, encoding="utf-8")
        except OSError as error:
            raise _cannot_write(self.study.folder, error) from None
        tries = itertools.count()

        def submit() -> str:
            if next(tries):
                # Slurm may have accepted the array although its answer was lost.
                for found in submissions.adopt(self.study.folder, {submission.token: submission}, CLIENT.queue()):
                    return str(found.job_id)
            # sbatch may be slow, and ending it would not tell whether Slurm has accepted the array.
            return replace(CLIENT, seconds=UNAVAILABLE_SECONDS).submit(file)

        return str(self._wait_for(submit))

    @contextlib.contextmanager
    def _without_overrides(self, array: Array) -> Iterator[None]:
        """Remove SBATCH_* variables that would override the configuration; others act as defaults."""
        own = {"array-inx", "job-name", "open-mode", "requeue", "no-requeue", "signal", "timelimit"}
        own |= {{"mem": "mem-per-node"}.get(name, name) for name in site_options(array.resources)}
        names = {f"SBATCH_{name.upper().replace('-', '_')}" for name in own}
        overruled = {name: os.environ.pop(name) for name in names & os.environ.keys()}
        try:
            for name, value in sorted(overruled.items()):
                self.say(f"{name}={value} in the environment is ignored: the configuration sets it")
            yield
        finally:
            os.environ.update(overruled)

    def _refused(self, array: Array, message: str) -> str:
        jobs = [str(s.job_id) for s in self.submitted.values()]
        before = f"; already submitted and still queued: {', '.join(jobs)} (cancel them with `scancel`)" if jobs else ""
        return f"Slurm refused the array for {array.resources.placement} ranks: {message}; {advice(message)}{before}"

    def _wait_for(self, ask: Callable[[], Any]) -> Any:
        """Retry `ask` until Slurm answers. Raises UserError after UNAVAILABLE_SECONDS."""
        deadline = time.monotonic() + UNAVAILABLE_SECONDS
        while True:
            try:
                return ask()
            except SlurmUnavailable as error:
                self._report_unavailable(str(error))
                if time.monotonic() > deadline:
                    raise UserError(
                        f"Slurm has not answered for {UNAVAILABLE_SECONDS / 60:.0f} min ({error}); try again later: "
                        "re-running the command submits what is missing"
                    ) from None
                time.sleep(RETRY_SECONDS)

    def _report_unavailable(self, message: str) -> None:
        if message != self.last_error:
            self.last_error = message
            self.say(f"Slurm does not answer ({message}); waiting for it, up to {UNAVAILABLE_SECONDS / 60:.0f} min")


def wait(
    plan: Plan, study: Study, submitter: Submitter, report: Callable[[str, dict[str, Any] | None], None], say: Say
) -> None:
    """Wait until every run of the plan, launched now or earlier, has a result; call `report(run_id, result)` for each.

    A run whose job left the queue without a result gets one that states the job's final Slurm state. Results are polled
    every 5 s and the queue every 20 s; the accounting is asked at most once a minute, and only if a job was lost.
    """
    open_runs = {request.spec.run_id for request in plan.to_launch} | set(plan.queued)
    gone_since: dict[str, float] = {}
    asked_queue = time.monotonic()
    asked_accounting = -math.inf
    unavailable = False
    accounting = _Accounting(say)
    held: set[str] = set()
    while True:
        # A failed run that is held back still has its old result.
        held_back = {r.spec.run_id for array in submitter.chunks for r in array.requests}
        for run_id in sorted(open_runs - held_back):
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
                unavailable = False
            except SlurmUnavailable as error:
                if not unavailable:
                    say(f"Slurm does not answer ({error}); the runs continue, and this command keeps waiting")
                unavailable = True
                queue = None
            if queue is not None:
                _report_held(queue.values(), held, say)
                jobs = submissions.jobs(study.folder, open_runs)
                alive = {r for r, job in jobs.items() if job in queue or r in held_back}
                for run_id in alive:
                    gone_since.pop(run_id, None)
                for run_id in open_runs - alive:
                    gone_since.setdefault(run_id, now)
                submitter.submit(len({jobs[r] for r in alive - held_back}))
        lost = {r for r, since in gone_since.items() if r in open_runs and now > since + FILE_SECONDS}
        if lost and now > asked_accounting + ACCOUNTING_SECONDS and not unavailable:
            asked_accounting = now
            states = accounting.states(submissions.jobs(study.folder, lost), now)
            for run_id in sorted(states):
                gone_since.pop(run_id)
            for run_id, result in _write_lost_results(study, states):
                open_runs.discard(run_id)
                report(run_id, result)
        time.sleep(POLL_SECONDS)


def _report_held(queue: Iterable[Queued], reported: set[str], say: Say) -> None:
    """Report the harness's jobs that will not start by themselves, once each."""
    for job in queue:
        if job.state == "PENDING" and job.name.startswith("harness-") and re.search(_HELD, job.reason, re.IGNORECASE):
            if job.job not in reported:
                say(
                    f"job {job.job} will not start by itself (Slurm's reason: {job.reason}): release it with "
                    f"`scontrol release {job.job}`, or cancel it with harness.cancel"
                )
            reported.add(job.job)


def queued(study: Study, run_ids: Sequence[str], say: Say) -> set[str]:
    """Return the unfinished runs whose job is pending or running, with one squeue call.

    Raises:
        UserError: Slurm does not answer, and submitting blindly could run them twice; or the folder cannot be written.
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
    for found in submissions.adopt(study.folder, known, queue):
        say(f"job {found.job_id} was submitted by a command that died before recording it; this command takes it over")
        _write(study.folder, found)
        jobs = submissions.unfinished_jobs(study.folder, run_ids)
    return {run_id for run_id, job in jobs.items() if job in queue}


def _write(study_folder: Path, submission: Submission) -> None:
    try:
        submissions.write(study_folder, submission)
    except OSError as error:
        raise _cannot_write(study_folder, error) from None


def _cannot_write(study_folder: Path, error: OSError) -> UserError:
    return UserError(f"{study_folder} cannot be written: {error.strerror}; choose another results=<folder>")


def chunks(array: Array, largest: int) -> list[Array]:
    """Split an array into arrays of at most `largest` jobs."""
    starts = range(0, len(array.jobs), largest)
    return [replace(array, jobs=array.jobs[start : start + largest]) for start in starts]


def _check_accepted(arrays: Sequence[Array], say: Say) -> None:
    """Have Slurm validate all arrays first, so that a refusal does not leave half of the plan submitted."""
    for array in arrays:
        partition = array.resources.partition
        try:
            refused = CLIENT.refusal(trial_options(array.resources))
        except SlurmUnavailable as error:
            say(f"the jobs could not be checked before submission ({error})")
            return
        if refused and re.search("node configuration is not available", refused) and CLIENT.nodes_out(partition):
            # --test-only considers only nodes that are up; sbatch itself would queue the job until others return.
            ranks = f"{array.resources.placement} ranks"
            say(f"Slurm could not start {ranks} now ({refused}): nodes are down, drained or unknown")
        elif refused:
            raise UserError(
                f"Slurm would refuse the array for {array.resources.placement} ranks: {refused}; {advice(refused)}; "
                "nothing was submitted"
            )


class _Accounting:
    """Asks why jobs have left the queue without a result. It may be away, and may learn of a job's end later."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._away_since = math.inf
        self._asked: set[str] = set()

    def states(self, jobs: Mapping[str, str | None], now: float) -> dict[str, str | None]:
        """Return the final state of each run's job, None if unknown; runs that must be asked for again are left out.

        Args:
            jobs: job by run id.
            now: monotonic seconds.
        """
        try:
            found = CLIENT.accounting(job for job in jobs.values() if job)
        except SlurmUnavailable as error:
            if not re.search(_AWAY, str(error), re.IGNORECASE) and not is_unavailable(str(error)):
                return dict.fromkeys(jobs)  # this site has none
            if self._away_since == math.inf:
                self._away_since = now
                self._say(f"Slurm's accounting does not answer ({error}); waiting for it to say why jobs have ended")
            return dict.fromkeys(jobs) if now > self._away_since + UNAVAILABLE_SECONDS else {}
        self._away_since = math.inf
        states = {run_id: found.get(job or "") for run_id, job in jobs.items()}
        again = {run_id for run_id, state in states.items() if state in (None, "RUNNING")} - self._asked
        self._asked |= again
        return {run_id: state for run_id, state in states.items() if run_id not in again}


def _write_lost_results(study: Study, states: Mapping[str, str | None]) -> list[tuple[str, dict[str, Any] | None]]:
    """Write results for runs whose job left without one, quoting the job's state in Slurm's accounting."""
    jobs = submissions.jobs(study.folder, states)
    written: list[tuple[str, dict[str, Any] | None]] = []
    for run_id in sorted(states):
        run_dir, job = study.run_dir(run_id), jobs[run_id]
        reason = outcome.lost_reason(run_dir, job, states[run_id])
        attempt = run_files.attempt_number(events.attempt_dirs(run_dir)[-1])
        result = outcome.result(run_dir, attempt, events.FAILED, reason=reason, job_id=job, written_by="launcher")
        if job and not result["stderr_tail"]:  # the ranks never started: the batch script may say why
            result["stderr_tail"] = outcome.batch_stderr_tail(study.folder, job)
        try:
            events.write_result(run_dir, result)
            written.append((run_id, study.result(run_id)))
        except OSError as error:
            note = f"{reason}; result.json cannot be written: {error.strerror}"
            written.append((run_id, {**result, "reason": note}))
    return written
