"""Runs one rank of an attempt on a node and decides, together with the other ranks' supervisors, how the attempt ends.

harness/node/array_task.py calls `run_rank` once per task of a job. The supervisors communicate only through files in
the attempt's folder, so the same code serves one machine and many nodes.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from harness.core import checkpoints, environment_variables, events, run_files, spec
from harness.core.measuring.environment import machine_id
from harness.core.rendezvous import Rendezvous, from_launcher, make_token
from harness.core.seals import sealed
from harness.core.spec import RunSpec, Site, read_run
from harness.core.system import disk
from harness.node import job, stage, workload
from harness.node.image import image
from harness.node.rank_supervisor import (
    CHECK_SECONDS,
    PEER_GRACE_SECONDS,
    POLL_SECONDS,
    WALL_LIMIT_REACHED,
    RankSupervisor,
    die_with_parent,
)
from harness.node.workload_supervisor import WALL_LIMIT, supervisor_of
from harness.slurm import energy
from harness.study import outcome, rank_exits
from harness.study.outcome import BY_FAILURE, BY_LIMIT, BY_NODE, BY_PREEMPTION
from harness.study.rank_exits import SETTLE_SECONDS, RankExit

# Peers that do not notice a failure are killed soon afterwards by their supervisors. A rank with no exit status after
# VANISHED_SECONDS is gone together with its node.
VANISHED_SECONDS = CHECK_SECONDS + PEER_GRACE_SECONDS + 3.0
# How long rank 0 waits after its own exit for ranks that may still be flushing their logs.
LAST_RANKS_SECONDS = 120.0
# A requeued job is killed by Slurm; its supervisors wait for that.
REQUEUE_SECONDS = 120.0
# A lost node is not the run's fault, and Slurm itself requeues without limit. But the run may be what crashes the
# nodes.
LOST_NODES = 3


def run_rank(run_dir_text: str, first_attempt: int, submission: str) -> None:
    """Run this task's rank to its end. Exits with code 1 if this or another rank failed or stopped early.

    A job that Slurm requeued runs with the same arguments; it is the next attempt.
    """
    run_attempt(run_dir_text, first_attempt + int(os.environ.get("SLURM_RESTART_COUNT", "0")), submission)


def run_attempt(run_dir_text: str, attempt: int, submission: str) -> None:
    run_dir = Path(run_dir_text)
    attempt_dir = run_files.attempt_dir(run_dir, attempt)
    run_spec, site = read_run(run_dir)
    role = _role(from_launcher(os.environ), run_spec)
    if role is None:
        return
    rendezvous, server = role
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        die_with_parent(signal.SIGTERM)  # mpirun's processes survive it if it is killed
    if job.host_of(os.environ) is not None and environment_variables.COMMAND in os.environ:
        job.stop_without(int(os.environ[environment_variables.COMMAND]))
    if why := reason_to_skip(run_dir, attempt, submission):
        print(f"nothing to do: {why}", flush=True)
        return
    if (before := ended_before(run_dir, attempt, run_spec, site, submission)) is not None:
        print(f"nothing to do: all ranks of attempt {before.attempt} have completed", flush=True)
        if rendezvous.rank == 0:
            before.finish_exited(warned=False)
        return
    attempt_dir.mkdir(exist_ok=True)
    make_token(attempt_dir)
    rank_exits.reserve(attempt_dir, rendezvous.rank)
    job_id = job.current_job_id(os.environ)
    supervisor: RankSupervisor | None = None
    with stage.staged_site(site, os.environ) as staged_site:
        try:
            if rendezvous.rank == 0:
                _write_begin(attempt_dir, submission, job_id, run_spec, site)
            supervisor = supervisor_of(run_spec, staged_site, rendezvous, run_dir, attempt_dir, server)
            ended = supervisor.run()
        except OSError as error:
            if not disk.is_full(attempt_dir, error):
                raise
            ended = RankExit(rendezvous.rank, disk.FULL, time.time(), disk.NO_SPACE, server=server)
        rank_exits.write(attempt_dir, replace(ended, machine=machine_id()))
    finalizer = AttemptFinalizer(run_dir, attempt, run_spec, site, submission, job_id)
    failed = ended if ended.failed else None
    if failed is None and rendezvous.rank == 0:
        _wait_for_exits_or_failure(attempt_dir, finalizer.processes)
        # After a signal only seconds are left.
        if run_spec.measure.record and supervisor is not None and not (supervisor.warned or supervisor.interrupted):
            energy.write(attempt_dir)
    if failed is not None or rank_exits.failure(attempt_dir) is not None:
        _wait_for_exits(attempt_dir, finalizer.processes, lambda: supervisor is not None and supervisor.interrupted)
        failed = rank_exits.failure(attempt_dir)
    if failed is not None:
        finalizer.finish_failed(failed)
        sys.exit(1)
    if rendezvous.rank == 0:
        finalizer.finish_exited(warned=supervisor is not None and supervisor.warned)


def _write_begin(attempt_dir: Path, submission: str, job_id: str | None, run_spec: RunSpec, site: Site) -> None:
    """Record what rank 0's supervisor knows when the attempt begins. Raises OSError."""
    outcome.write_job(attempt_dir, submission, job_id, host=job.host_of(os.environ))
    begin = {
        "t": time.time(),
        "job_id": job_id,
        "container": image(site.container),
        "job_started": job.job_started(os.environ),
        "staged": stage.staging_record(site, os.environ),
    }
    if changed := workload.changed_code(run_spec, site):
        begin["code_changed"] = changed
    spec.write_json(attempt_dir / run_files.BEGIN, sealed(begin))


def _role(task: Rendezvous, run_spec: RunSpec) -> tuple[Rendezvous, int | None] | None:
    """Determine which rank or parameter server this task is.

    Servers with nodes of their own (locally: processes of their own) are numbered after the ranks.

    Returns:
        The task's rendezvous and the number of its server (None for a rank). None for a surplus task on a
        server's node.
    """
    servers = run_spec.server_nodes
    if not servers:
        return task, None
    ranks, on_node = run_spec.placement.world_size, run_spec.placement.ranks_per_node
    if task.rank < ranks:
        return replace(task, world_size=ranks, local_world_size=on_node), None
    if task.local_world_size == task.world_size:
        return task, task.rank - ranks
    if task.local_rank > 0:
        return None
    number = (task.rank - ranks) // on_node
    return replace(task, rank=ranks + number, world_size=ranks + servers), number


def reason_to_skip(run_dir: Path, attempt: int, submission: str) -> str | None:
    """Return why this job must not run: the run was completed or resubmitted in the meantime. None if it may run.

    Prevents duplicate runs, even if the scheduler revives a job that was given up.
    """
    result = events.read_result(run_dir)
    if result is not None and result["status"] == events.COMPLETED:
        return "the run is completed"
    for other in events.attempt_dirs(run_dir):
        if run_files.attempt_number(other) >= attempt:
            theirs = outcome.read_job(other).get("submission")
            if theirs is not None and theirs != submission:
                return f"{other.name} belongs to a later submission"
    return None


def ended_before(
    run_dir: Path, attempt: int, run_spec: RunSpec, site: Site, submission: str
) -> AttemptFinalizer | None:
    """Return what ends the attempt before this one if only its result is missing: its node was lost in between. None if
    there is still something to do, or if it had a result, which a new submission replaces."""
    earlier = [run_files.attempt_number(other) for other in events.attempt_dirs(run_dir)]
    before = max((number for number in earlier if number < attempt), default=None)
    if before is None or events.read_result(run_dir) is not None:
        return None
    folder = run_files.attempt_dir(run_dir, before)
    job_id = outcome.read_job(folder).get("job_id")
    finalizer = AttemptFinalizer(run_dir, before, run_spec, site, submission, job_id)
    return finalizer if finalizer.completed and not (folder / run_files.REPLACED_RESULT).exists() else None


class AttemptFinalizer:
    """Ends an attempt: writes the result, or has another attempt follow."""

    def __init__(
        self, run_dir: Path, attempt: int, run_spec: RunSpec, site: Site, submission: str, job_id: str | None
    ) -> None:
        self.run_dir, self.attempt, self.site = run_dir, attempt, site
        self.attempt_dir = run_files.attempt_dir(run_dir, attempt)
        self.ranks = run_spec.processes.world_size
        # Parameter servers with nodes of their own are numbered after the ranks.
        self.processes = self.ranks + run_spec.server_nodes
        # A training that saves by itself: what it has saved is unknown here.
        self.resumes = run_spec.workload is not None and bool(run_spec.workload.resume_args)
        self.submission = submission
        self.job_id = job_id

    def finish_failed(self, first: RankExit) -> None:
        """Finish after a rank failed or was killed. Called by every rank's supervisor."""
        if first.interrupted:
            sys.exit(1)  # no result: the run is unfinished, not failed
        if events.read_result(self.run_dir) is not None:
            sys.exit(1)  # another supervisor has finished the attempt
        if self._missing() and first.reason != disk.NO_SPACE:
            # Slurm will notice too. Its own requeue excludes the lost node; ours might be given it again.
            time.sleep(job.slurmd_timeout())
            self.finish_lost(first)
        else:
            self.finish_or_restart(
                BY_LIMIT if first.reason in (WALL_LIMIT_REACHED, WALL_LIMIT) else BY_FAILURE,
                outcome.sentence(self.attempt_dir, first),
                first,
            )

    def finish_lost(self, first: RankExit | None) -> None:
        """Finish after ranks have disappeared. first: the first failure among the ranks with an exit status."""
        missing = self._missing()
        then = f"; then {outcome.sentence(self.attempt_dir, first)}" if first is not None else ""
        self.finish_or_restart(
            BY_NODE, f"{self._names(missing)} disappeared without an exit status, as when a node is lost{then}", first
        )

    def finish_or_restart(self, by: str, reason: str, first: RankExit | None) -> None:
        """Start another attempt, or write a failed result that says why there is none."""
        refused = self._restart(by, reason)
        self._write(events.FAILED, "; ".join(filter(None, (reason, refused))), first)

    def finish_exited(self, warned: bool) -> None:
        """Finish on rank 0 when no rank failed: all completed, or all saved and exited."""
        if missing := self._missing():
            reason = f"{self._names(missing)} did not exit within {LAST_RANKS_SECONDS:.0f} s after rank 0"
            self._write(events.FAILED, reason)
            sys.exit(1)
        if self.completed:
            self._write(events.COMPLETED)
            if not self.site.keep_checkpoint:
                shutil.rmtree(self.run_dir / run_files.CHECKPOINT, ignore_errors=True)
            return
        if not warned:
            sys.exit(1)  # stopped on request: no result, re-running the command continues the run
        step = checkpoints.saved_steps(self.run_dir)[-1]
        by = BY_PREEMPTION if job.preempted() else BY_LIMIT
        reason = f"{by}: saved at step {step}"
        refused = self._restart(by, reason)
        self._write(events.FAILED, f"{reason}; {refused}; re-run the command to continue from there")
        sys.exit(1)

    def _restart(self, by: str, reason: str) -> str | None:
        """Have another attempt follow. Exits if one follows; otherwise returns why not (None: no restarts allowed)."""
        steps = checkpoints.saved_steps(self.run_dir)
        saved = steps[-1] if steps else 0
        # Limits apply per submission: resubmitting a run resets them.
        mine = [
            d for d in events.attempt_dirs(self.run_dir) if outcome.read_job(d).get("submission") == self.submission
        ]
        before = [again for d in mine if d != self.attempt_dir and (again := outcome.read_restart(d))]
        done = sum(again["by"] == by for again in before)
        if by == BY_FAILURE and done >= self.site.max_restarts:
            return f"restarted {done} times (checkpoint.max_restarts={self.site.max_restarts})" if done else None
        if by == BY_NODE and done >= LOST_NODES:
            return f"requeued {done} times already"
        if by == BY_LIMIT and done >= self.site.max_requeues:
            return f"requeued {done} times (checkpoint.max_requeues={self.site.max_requeues})"
        if by == BY_LIMIT and not self.resumes and saved <= max((again["step"] for again in before), default=0):
            return "not requeued: no step was saved since the last start; give it a longer cluster.timeout_minutes"
        first = outcome.write_restart(self.attempt_dir, by, reason, saved)
        if by == BY_FAILURE and environment_variables.RESTARTS_HERE in os.environ:
            sys.exit(1)
        if not first:
            time.sleep(REQUEUE_SECONDS)  # another rank's supervisor requeues
            sys.exit(1)
        refused = job.requeue()
        if refused is None:
            time.sleep(REQUEUE_SECONDS)
            sys.exit(1)
        (self.attempt_dir / run_files.AGAIN).unlink()
        return f"the job could not be requeued: {refused}"

    @property
    def completed(self) -> bool:
        """All processes have ended, none of them early."""
        return not self._missing() and all(exit_.code == 0 for exit_ in rank_exits.read(self.attempt_dir))

    def _missing(self) -> list[int]:
        """Ranks, and after them parameter servers, without an exit status."""
        return sorted(set(range(self.processes)) - {e.rank for e in rank_exits.read(self.attempt_dir)})

    def _names(self, numbers: list[int]) -> str:
        ranks = [str(number) for number in numbers if number < self.ranks]
        servers = [f"parameter server {number - self.ranks}" for number in numbers if number >= self.ranks]
        named = [f"rank{'s' * (len(ranks) > 1)} {', '.join(ranks)}"] if ranks else []
        return ", ".join(named + servers)

    def _write(self, status: str, reason: str | None = None, rank_exit: RankExit | None = None) -> None:
        begin = outcome.read_begin(self.attempt_dir)
        result = outcome.result(
            self.run_dir, self.attempt, status, reason=reason, rank_exit=rank_exit, started=begin, job_id=self.job_id
        )
        outcome.write_result_of_job(self.run_dir, result)


def finish_unreported(run_dir: Path, attempt: int, submission: str, output: Sequence[str]) -> None:
    """Finish an attempt whose supervisors were killed before they could report how it ended, or never started.

    Runs in the batch step after srun or mpirun has failed. The job is requeued or the run is marked as failed.

    Args:
        output: what srun or mpirun printed last.
    """
    attempt_dir = run_files.attempt_dir(run_dir, attempt)
    if events.read_result(run_dir) is not None or outcome.read_restart(attempt_dir):
        return
    if not attempt_dir.exists():
        attempt_dir.mkdir()
        outcome.write_job(attempt_dir, submission, job.current_job_id(os.environ))
    first = rank_exits.failure(attempt_dir)
    # Who caused the first failure: srun terminates the other ranks when one has failed.
    told_to_end = first.interrupted if first else any(e.code == events.LEFT for e in rank_exits.read(attempt_dir))
    if told_to_end:
        return
    run_spec, site = read_run(run_dir)
    finalizer = AttemptFinalizer(run_dir, attempt, run_spec, site, submission, job.current_job_id(os.environ))
    nodes = run_spec.placement.nodes + run_spec.server_nodes
    out_of_memory = _line_with(r"\boom\b|oom.kill|memory", output)
    # With `srun --mpi=pmix`, Slurm kills all supervisors as soon as a rank exits without MPI_Finalize.
    by_pmix = _line_with(r"mpi/pmix", output)
    not_staged = _line_with(re.escape(stage.KEY), output)
    full = outcome.full_disk(run_dir, output)
    message = full or not_staged or out_of_memory or by_pmix or next(reversed(output), outcome.NOTHING)
    if outcome.read_begin(attempt_dir) is None:
        # After a node was lost, Slurm may allocate it again until it notices.
        by = BY_NODE if os.environ.get("SLURM_RESTART_COUNT", "0") != "0" else BY_FAILURE
        finalizer.finish_or_restart(by, f"the ranks could not be started: {message}", first)
    elif out_of_memory or nodes == 1 or ((first or by_pmix) and job.all_nodes_answer()):
        reason = f"the job's processes were killed before they could report why; Slurm says: {message}"
        finalizer.finish_or_restart(
            BY_FAILURE, reason if out_of_memory or first is None else outcome.sentence(attempt_dir, first), first
        )
    else:
        if first is not None:
            time.sleep(job.slurmd_timeout())  # as in AttemptFinalizer.finish_failed
        finalizer.finish_lost(first)


def _wait_for_exits_or_failure(attempt_dir: Path, processes: int) -> None:
    deadline = time.monotonic() + LAST_RANKS_SECONDS
    while time.monotonic() < deadline:
        ended = rank_exits.read(attempt_dir)
        if len(ended) == processes or any(e.failed for e in ended):
            return
        time.sleep(POLL_SECONDS)


def _wait_for_exits(attempt_dir: Path, processes: int, hurry: Callable[[], bool]) -> None:
    """Wait until every rank has an exit status, or will not get one.

    Args:
        hurry: whether Slurm is ending the step, which leaves only seconds.
    """
    start = time.monotonic()
    while not hurry() and (waited := time.monotonic() - start) < VANISHED_SECONDS:
        if waited > SETTLE_SECONDS and len(rank_exits.read(attempt_dir)) == processes:
            return
        time.sleep(POLL_SECONDS)


def _line_with(pattern: str, output: Sequence[str]) -> str | None:
    return next((line for line in output if re.search(pattern, line, re.IGNORECASE)), None)


if __name__ == "__main__":
    run_attempt(sys.argv[1], int(sys.argv[2]), sys.argv[3])
