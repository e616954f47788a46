"""On the node: starts one rank in the framework's environment, watches it and the others, writes how it ended.

submitit calls `run_rank` once per task, with plain values only. Files in the attempt's folder are all that the ranks'
watchers tell each other, so the same code serves one machine and many nodes.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from harness import events, outcome
from harness.command import rank_command, rank_environment
from harness.outcome import RankExit
from harness.spec import RunSpec, Site, read_run
from harness.worker.capture import DECLARED_CORES_VARIABLE
from harness.worker.rendezvous import Rendezvous, from_launcher

POLL_SECONDS = 0.2
# Looking for peers that failed reads a folder that many nodes share.
PEER_POLL_SECONDS = 1.0
# A rank that fails takes its peers down within milliseconds; wait a moment, then ask who was first.
SETTLE_SECONDS = 1.0
# How long the others may go on after one rank has failed. Their collectives usually raise before.
PEER_GRACE_SECONDS = 5.0
# After its own success, rank 0 waits this long for the others', who may still flush their logs.
LAST_RANKS_SECONDS = 120.0
KILL_GRACE_SECONDS = 3.0


def run_rank(run_dir_text: str, first_attempt: int) -> None:
    """Runs this task's rank to its end. Exits with code 1 when it, or another rank, failed."""
    run_dir = Path(run_dir_text)
    # A job that Slurm requeued runs with the same arguments: it is another attempt.
    attempt = first_attempt + int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    attempt_dir = run_dir / f"attempt-{attempt}"
    attempt_dir.mkdir(exist_ok=True)
    spec, site = read_run(run_dir)
    rendezvous = from_launcher(os.environ)
    started = time.time()
    exit_ = Rank(spec, site, rendezvous, run_dir, attempt_dir).run()
    outcome.write_exit(attempt_dir, exit_)
    first = exit_ if exit_.code else None
    if first is None and rendezvous.rank == 0:
        _wait_for_all(attempt_dir, rendezvous.world_size)
    if first is not None or outcome.failure(attempt_dir) is not None:
        time.sleep(SETTLE_SECONDS)
        first = outcome.failure(attempt_dir)
    job_id = job_name(os.environ)
    if first is not None and first.interrupted:
        sys.exit(1)
    if first is not None:
        events.write_result(
            run_dir, outcome.result(run_dir, attempt, events.FAILED, rank_exit=first, started=started, job_id=job_id)
        )
        sys.exit(1)
    if rendezvous.rank == 0:
        ended = {e.rank for e in outcome.read_exits(attempt_dir)}
        missing = sorted(set(range(rendezvous.world_size)) - ended)
        status = events.FAILED if missing else events.COMPLETED
        reason = f"ranks {missing} did not end within {LAST_RANKS_SECONDS:.0f} s after rank 0" if missing else None
        events.write_result(
            run_dir, outcome.result(run_dir, attempt, status, reason=reason, started=started, job_id=job_id)
        )
        if missing:
            sys.exit(1)


def job_name(environ: Mapping[str, str]) -> str | None:
    """The job as the scheduler's commands name it: '123_4' for an array's element."""
    if "SUBMITIT_LOCAL_JOB_ID" in environ:  # first, as in `from_launcher`: a local run may be inside an allocation
        return environ["SUBMITIT_LOCAL_JOB_ID"]
    if "SLURM_ARRAY_JOB_ID" in environ:
        return f"{environ['SLURM_ARRAY_JOB_ID']}_{environ['SLURM_ARRAY_TASK_ID']}"
    return environ.get("SLURM_JOB_ID")


def declared_cores(environ: Mapping[str, str]) -> dict[str, str]:
    """How many cores Slurm believes this node to have, for the rank's start event: more than it has means that it is a
    virtual node, whose figures are no scaling result. Empty where Slurm does not say."""
    node = environ.get("SLURMD_NODENAME")
    if not node:
        return {}
    try:
        shown = subprocess.run(["scontrol", "show", "node", node], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    match = re.search(r"\bCPUTot=(\d+)", shown.stdout)
    return {DECLARED_CORES_VARIABLE: match.group(1)} if match else {}


class Rank:
    """One rank's process, from start to end."""

    def __init__(self, spec: RunSpec, site: Site, rendezvous: Rendezvous, run_dir: Path, attempt_dir: Path) -> None:
        self.argv = rank_command(site, run_dir, attempt_dir)
        self.environment = rank_environment(spec, site, rendezvous, os.environ)
        if rendezvous.local_rank == 0:
            self.environment.update(declared_cores(os.environ))
        self.rank = rendezvous.rank
        self.attempt_dir = attempt_dir
        self.deadline = time.monotonic() + site.timeout_seconds
        self.timeout_seconds = site.timeout_seconds
        self.stop_reason: str | None = None
        self.interrupted = False

    def run(self) -> RankExit:
        """Blocks until the process has ended, by itself or because it was ended."""
        # submitit's own handlers would requeue; here every signal means: end the rank, say why.
        signal.signal(signal.SIGUSR2, lambda *_: self._stop("the wall limit was reached"))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._interrupt())
        with (
            open(self.attempt_dir / f"stdout.rank{self.rank}", "ab") as stdout,
            open(self.attempt_dir / f"stderr.rank{self.rank}", "ab") as stderr,
        ):
            try:
                process = subprocess.Popen(
                    self.argv,
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    start_new_session=True,
                    preexec_fn=_die_with_parent,
                )
            except OSError as error:
                stderr.write(f"{self.argv[0]}: {error.strerror}\n".encode())
                return RankExit(self.rank, 127, time.time())
            code = self._watch(process)
        return RankExit(self.rank, code, time.time(), self.stop_reason, self.interrupted)

    def _watch(self, process: subprocess.Popen[bytes]) -> int:
        peer_failed_at: float | None = None
        looked_at = 0.0
        while True:
            try:
                return process.wait(POLL_SECONDS)
            except subprocess.TimeoutExpired:
                pass
            now = time.monotonic()
            if now > self.deadline:
                self._stop(f"the run took longer than {self.timeout_seconds:.0f} s (cluster.timeout_minutes)")
            elif peer_failed_at is not None and now > peer_failed_at + PEER_GRACE_SECONDS:
                self._stop("another rank failed")
            elif peer_failed_at is None and now > looked_at + PEER_POLL_SECONDS:
                looked_at = now
                if outcome.failure(self.attempt_dir) is not None:
                    peer_failed_at = now
            if self.stop_reason:
                return self._end(process)

    def _stop(self, why: str) -> None:
        self.stop_reason = self.stop_reason or why

    def _interrupt(self) -> None:
        # The word may come more than once; only a run that had not failed before is interrupted.
        if self.stop_reason is None:
            self.interrupted = True
            self._stop("the job was told to end")

    def _end(self, process: subprocess.Popen[bytes]) -> int:
        for number, patience in ((signal.SIGTERM, KILL_GRACE_SECONDS), (signal.SIGKILL, None)):
            os.killpg(process.pid, number)
            try:
                # Never 0: a rank that had to be ended has not succeeded, whatever it says at the last moment.
                return process.wait(patience) or -number
            except subprocess.TimeoutExpired:
                continue
        raise AssertionError("SIGKILL cannot be outlived")


def _wait_for_all(attempt_dir: Path, world_size: int) -> None:
    deadline = time.monotonic() + LAST_RANKS_SECONDS
    while time.monotonic() < deadline:
        exits = outcome.read_exits(attempt_dir)
        if len(exits) == world_size or any(e.code for e in exits):
            return
        time.sleep(POLL_SECONDS)


def _die_with_parent() -> None:
    """Linux: the rank gets SIGKILL when its watcher is killed, so that nothing is left running on the node."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
