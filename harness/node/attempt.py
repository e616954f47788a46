"""On the node: runs one rank to its end, and decides with the others' watchers what the run's end is.

harness/node/array_task.py calls `run_rank` once per task of a job. Files in the attempt's folder are all that the
ranks' watchers tell each other, so the same code serves one machine and many nodes.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harness.core import checkpoints, environment_variables, events, run_files, spec
from harness.core.rendezvous import Rendezvous, from_launcher
from harness.core.spec import RunSpec, Site, read_run
from harness.node import stage
from harness.node.image import image
from harness.node.rank import LIMIT, LOOK_SECONDS, PEER_GRACE_SECONDS, POLL_SECONDS, Rank, end_with_parent
from harness.slurm import energy
from harness.slurm.client import Client, Job, SlurmUnavailable
from harness.study import outcome
from harness.study.outcome import BY_FAILURE, BY_LIMIT, BY_NODE, BY_PREEMPTION, RankExit

# A rank that fails takes its peers down within milliseconds; wait a moment, then ask who was first. The watchers of
# those that do not notice end them soon after; one that says nothing by then is gone, with its node.
SETTLE_SECONDS = 1.0
VANISHED_SECONDS = LOOK_SECONDS + PEER_GRACE_SECONDS + 3.0
# After its own end, rank 0 waits this long for the others', who may still flush their logs.
LAST_RANKS_SECONDS = 120.0
# A job that is put back into the queue is ended by Slurm; until then its ranks' watchers wait.
REQUEUE_SECONDS = 120.0
# A lost node is not the run's fault: Slurm itself requeues as often as it notices one. But a run may be what brings
# nodes down.
LOST_NODES = 3
# A node that is there starts a process within seconds.
NODES_SECONDS = 60.0
# Slurm looks at its nodes every so often.
NOTICE_SECONDS = 60.0
SLURM = Client(seconds=60, ignore_sigterm=True)


def run_rank(run_dir_text: str, first_attempt: int, submission: str) -> None:
    """Runs this task's rank to its end. Exits with code 1 when it, or another rank, failed or left.

    A job that Slurm requeued runs with the same arguments: it is another attempt.
    """
    run_attempt(run_dir_text, first_attempt + int(os.environ.get("SLURM_RESTART_COUNT", "0")), submission)


def run_attempt(run_dir_text: str, attempt: int, submission: str) -> None:
    run_dir = Path(run_dir_text)
    attempt_dir = run_files.attempt_dir(run_dir, attempt)
    run_spec, site = read_run(run_dir)
    placed = _placed(from_launcher(os.environ), run_spec)
    if placed is None:
        return
    rendezvous, server = placed
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        end_with_parent(signal.SIGTERM)  # mpirun's processes do not, when it is killed itself
    if why := superseded(run_dir, attempt, submission):
        print(f"nothing to do: {why}", flush=True)
        return
    attempt_dir.mkdir(exist_ok=True)
    job_id = job_name(os.environ)
    if rendezvous.rank == 0:
        outcome.write_job(attempt_dir, submission, job_id)
        begin = {
            "t": time.time(),
            "job_id": job_id,
            "container": image(site.container),
            "job_started": _job_started(os.environ),
            "staged": stage.record(site, os.environ),
        }
        spec.write_json(attempt_dir / run_files.BEGIN, begin)
    with stage.entered(site, os.environ) as here:
        rank = Rank(run_spec, here, rendezvous, run_dir, attempt_dir, server)
        ended = rank.run()
        outcome.write_exit(attempt_dir, ended)
    end = End(run_dir, attempt, run_spec, site, submission, job_id)
    failed = ended if ended.failed else None
    if failed is None and rendezvous.rank == 0:
        _wait_for_all(attempt_dir, end.processes)
        if run_spec.measure.record and not (rank.warned or rank.interrupted):  # then there are only seconds left
            energy.write(attempt_dir)
    if failed is not None or outcome.failure(attempt_dir) is not None:
        _settle(attempt_dir, end.processes, lambda: rank.interrupted)
        failed = outcome.failure(attempt_dir)
    if failed is not None:
        end.failed(failed)
        sys.exit(1)
    if rendezvous.rank == 0:
        end.together(warned=rank.warned)


def _placed(task: Rendezvous, run_spec: RunSpec) -> tuple[Rendezvous, int | None] | None:
    """Which rank this task is; or which parameter server, with a rank after those of the ranks, where servers have
    nodes of their own, after the ranks' (locally processes); or None: a task of a server's node that is not needed."""
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


def superseded(run_dir: Path, attempt: int, submission: str) -> str | None:
    """Why this job must not run: the run was completed meanwhile, or was submitted again. None where it may.

    So nothing is run twice, even by a job that a scheduler revives after it was given up.
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


class End:
    """How an attempt ends: with a result, or with another attempt."""

    def __init__(
        self, run_dir: Path, attempt: int, run_spec: RunSpec, site: Site, submission: str, job_id: str | None
    ) -> None:
        self.run_dir, self.attempt, self.site = run_dir, attempt, site
        self.attempt_dir = run_files.attempt_dir(run_dir, attempt)
        self.ranks = run_spec.placement.world_size
        # Parameter servers on nodes of their own are numbered after the ranks.
        self.processes = self.ranks + run_spec.server_nodes
        self.submission = submission
        self.job_id = job_id

    def failed(self, first: RankExit) -> None:
        """After a rank failed, or was ended: every rank's watcher comes here."""
        if first.interrupted:
            sys.exit(1)  # no result: the run has not failed, it is not finished
        if events.read_result(self.run_dir) is not None:
            sys.exit(1)  # another rank's watcher was here
        if self._missing():
            # Slurm notices too, later: its own requeue leaves the lost node out, ours could be given it again.
            time.sleep(_slurmd_timeout())
            self.lost(first)
        else:
            self.or_again(BY_LIMIT if first.reason == LIMIT else BY_FAILURE, first.sentence, first)

    def lost(self, first: RankExit | None) -> None:
        """After ranks have vanished. first: the rank of whose end is known that failed first."""
        missing = self._missing()
        then = f"; then {first.sentence}" if first is not None else ""
        self.or_again(BY_NODE, f"{self._names(missing)} vanished without a word, as when a node is lost{then}", first)

    def or_again(self, by: str, reason: str, first: RankExit | None) -> None:
        """Another attempt, or a result that says why there is none."""
        refused = self._again(by, reason)
        self._write(events.FAILED, "; ".join(filter(None, (reason, refused))), first)

    def together(self, warned: bool) -> None:
        """Rank 0 only, after no rank failed: all are done, or all have saved and left."""
        exits = outcome.read_exits(self.attempt_dir)
        if missing := self._missing():
            reason = f"{self._names(missing)} did not end within {LAST_RANKS_SECONDS:.0f} s after rank 0"
            self._write(events.FAILED, reason)
            sys.exit(1)
        if all(e.code == 0 for e in exits):
            self._write(events.COMPLETED)
            if not self.site.keep_checkpoint:
                shutil.rmtree(self.run_dir / run_files.CHECKPOINT, ignore_errors=True)
            return
        if not warned:
            sys.exit(1)  # told to end: no result, the same command continues the run
        step = checkpoints.saved_steps(self.run_dir)[-1]
        by = BY_PREEMPTION if _preempted() else BY_LIMIT
        reason = f"{by}: saved at step {step}"
        refused = self._again(by, reason)
        self._write(events.FAILED, f"{reason}; {refused}; the same command continues it from there")
        sys.exit(1)

    def _again(self, by: str, reason: str) -> str | None:
        """Has another attempt follow: this process then ends here. Otherwise why none follows; None: nobody asked."""
        steps = checkpoints.saved_steps(self.run_dir)
        saved = steps[-1] if steps else 0
        # Of this submission: whoever asks for the run again, allows it all of them again.
        mine = [
            d for d in events.attempt_dirs(self.run_dir) if outcome.read_job(d).get("submission") == self.submission
        ]
        before = [again for d in mine if d != self.attempt_dir and (again := outcome.read_again(d))]
        done = sum(again["by"] == by for again in before)
        if by == BY_FAILURE and done >= self.site.max_restarts:
            return f"restarted {done} times (checkpoint.max_restarts={self.site.max_restarts})" if done else None
        if by == BY_NODE and done >= LOST_NODES:
            return f"requeued {done} times already"
        if by == BY_LIMIT and done >= self.site.max_requeues:
            return f"requeued {done} times (checkpoint.max_requeues={self.site.max_requeues})"
        if by == BY_LIMIT and saved <= max((again["step"] for again in before), default=0):
            return "not requeued: no step was saved since the last start; give it a longer cluster.timeout_minutes"
        first = outcome.write_again(self.attempt_dir, by, reason, saved)
        if by == BY_FAILURE and environment_variables.RESTARTS_HERE in os.environ:
            sys.exit(1)
        if not first:
            time.sleep(REQUEUE_SECONDS)  # another rank's watcher does it
            sys.exit(1)
        words = _requeue()
        if words is None:
            time.sleep(REQUEUE_SECONDS)
            sys.exit(1)
        (self.attempt_dir / run_files.AGAIN).unlink()
        return f"the job could not be requeued: {words}"

    def _missing(self) -> list[int]:
        """The ranks, and after them the parameter servers, of whose end nothing is known."""
        return sorted(set(range(self.processes)) - {e.rank for e in outcome.read_exits(self.attempt_dir)})

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


def without_word(run_dir: Path, attempt: int, submission: str, said: Sequence[str]) -> None:
    """In the batch step, after srun or mpirun has failed and said this: an attempt whose watchers were all killed
    before they could say how it ended, or never began, goes back into the queue, or is said to have failed."""
    attempt_dir = run_files.attempt_dir(run_dir, attempt)
    if events.read_result(run_dir) is not None or outcome.read_again(attempt_dir):
        return
    if not attempt_dir.exists():
        attempt_dir.mkdir()
        outcome.write_job(attempt_dir, submission, job_name(os.environ))
    first = outcome.failure(attempt_dir)
    # By whom the first was: srun tells the others to end when one has failed.
    told_to_end = first.interrupted if first else any(e.code == events.LEFT for e in outcome.read_exits(attempt_dir))
    if told_to_end:
        return
    run_spec, site = read_run(run_dir)
    end = End(run_dir, attempt, run_spec, site, submission, job_name(os.environ))
    nodes = run_spec.placement.nodes + run_spec.server_nodes
    out_of_memory = _line_with(r"\boom\b|oom.kill|memory", said)
    # With `srun --mpi=pmix` Slurm kills all watchers as soon as a rank has gone without leaving MPI.
    by_pmix = _line_with(r"mpi/pmix", said)
    not_staged = _line_with(re.escape(stage.KEY), said)
    last_words = not_staged or out_of_memory or by_pmix or next(reversed(said), "nothing")
    if outcome.read_begin(attempt_dir) is None:
        # After a node was lost, Slurm may give the same one again until it notices.
        by = BY_NODE if os.environ.get("SLURM_RESTART_COUNT", "0") != "0" else BY_FAILURE
        end.or_again(by, f"the ranks could not be started: {last_words}", first)
    elif out_of_memory or nodes == 1 or ((first or by_pmix) and _all_nodes_answer()):
        words = f"the job's processes were killed without a word; Slurm says: {last_words}"
        end.or_again(BY_FAILURE, words if out_of_memory or first is None else first.sentence, first)
    else:
        if first is not None:
            time.sleep(_slurmd_timeout())  # as in End.failed
        end.lost(first)


def slurm_ends_it() -> bool:
    """Whether this job is being ended by Slurm, which starts it again, or knows why not."""
    job = _this_job()
    return job is not None and job.state != "RUNNING"


def job_name(environ: Mapping[str, str]) -> str | None:
    """The job as the scheduler's commands name it: '123_4' for an array's element."""
    if "SUBMITIT_LOCAL_JOB_ID" in environ:  # first, as in `from_launcher`: a local run may be inside an allocation
        return environ["SUBMITIT_LOCAL_JOB_ID"]
    if "SLURM_ARRAY_JOB_ID" in environ:
        return f"{environ['SLURM_ARRAY_JOB_ID']}_{environ['SLURM_ARRAY_TASK_ID']}"
    return environ.get("SLURM_JOB_ID")


def _job_started(environ: Mapping[str, str]) -> float | None:
    """When the batch script began, in unix seconds, where this run is all that the job does."""
    text = "" if environment_variables.RESTARTS_HERE in environ else environ.get(environment_variables.JOB_STARTED, "")
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else None


def _requeue() -> str | None:
    """Puts this job back into the queue; Slurm ends it soon. Gives what went wrong, in Slurm's words."""
    if "SUBMITIT_LOCAL_JOB_ID" in os.environ or "SLURM_JOB_ID" not in os.environ:
        return "it is no job of Slurm"
    if (job := _this_job()) is not None and job.state == "CANCELLED":
        return "it was cancelled"
    refused = SLURM.requeue(os.environ["SLURM_JOB_ID"])
    # Slurm may have been first, when it has lost a node.
    return None if refused and "pending execution" in refused else refused


def _preempted() -> bool:
    """Whether the warning came because another job takes the nodes, and not because the time is over."""
    job = _this_job()
    return job is not None and job.preempt_time is not None


def _all_nodes_answer() -> bool:
    """Whether srun can start something on every node of this job."""
    try:
        return Client(seconds=NODES_SECONDS).nodes_answer(int(os.environ.get("SLURM_JOB_NUM_NODES", "1")))
    except SlurmUnavailable:
        return False


def _slurmd_timeout() -> float:
    """Seconds after which Slurm has noticed that a node does not answer; 0 without Slurm."""
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


def _wait_for_all(attempt_dir: Path, processes: int) -> None:
    deadline = time.monotonic() + LAST_RANKS_SECONDS
    while time.monotonic() < deadline:
        exits = outcome.read_exits(attempt_dir)
        if len(exits) == processes or any(e.failed for e in exits):
            return
        time.sleep(POLL_SECONDS)


def _settle(attempt_dir: Path, processes: int, hurry: Callable[[], bool]) -> None:
    """Until every rank's end is known, or will not be. hurry: whether Slurm is ending the step: then there are only
    seconds left."""
    start = time.monotonic()
    while not hurry() and (waited := time.monotonic() - start) < VANISHED_SECONDS:
        if waited > SETTLE_SECONDS and len(outcome.read_exits(attempt_dir)) == processes:
            return
        time.sleep(POLL_SECONDS)


def _line_with(pattern: str, said: Sequence[str]) -> str | None:
    return next((line for line in said if re.search(pattern, line, re.IGNORECASE)), None)


if __name__ == "__main__":
    run_attempt(sys.argv[1], int(sys.argv[2]), sys.argv[3])
