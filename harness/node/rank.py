"""One rank's process on a node: started in the framework's environment, watched, told to leave, ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from harness.core import environment_variables, run_files
from harness.core.rendezvous import Rendezvous
from harness.core.spec import RunSpec, Site
from harness.node.command import not_started, own_cpus, profiler_command, rank_command, rank_environment
from harness.slurm.client import Client, SlurmUnavailable
from harness.study import outcome
from harness.study.outcome import PEER_FAILED, RankExit

POLL_SECONDS = 0.2
# Looking at files, of this rank and of its peers, in a folder that many nodes share.
LOOK_SECONDS = 1.0
# How long the others may go on after one rank has failed. Their collectives usually raise before.
PEER_GRACE_SECONDS = 5.0
# After SIGTERM Slurm waits KillWait (30 s by default) before SIGKILL: time to reach the end of a block, and save.
TERM_PATIENCE_SECONDS = 20.0
# Of the time between the scheduler's warning and the wall limit, this much is kept for ending what did not leave.
LIMIT_MARGIN_SECONDS = 10.0
# How long the stacks of a rank without progress take to be written.
STACKS_SECONDS = 1.0
LIMIT = "the wall limit came, and no block of steps ended in time to save"


class Rank:
    """One rank's process, from start to end.

    warned: the scheduler said that the job's time is nearly over (SIGUSR2). interrupted: it, or the user, said that the
    job is to end (SIGTERM). In both cases the ranks save at the end of the block, and leave.

    server: the number of the parameter server that this is instead, on a node of its own: it ends when all workers have
    said goodbye, and has no events that could show its progress.
    """

    def __init__(
        self,
        spec: RunSpec,
        site: Site,
        rendezvous: Rendezvous,
        run_dir: Path,
        attempt_dir: Path,
        server: int | None = None,
    ) -> None:
        module = "harness.worker" if server is None else "harness.worker.servers.standalone"
        profiler = profiler_command(spec, attempt_dir, rendezvous.rank) if server is None else ()
        self.argv = rank_command(site, run_dir, attempt_dir, module=module, profiler=profiler)
        self.server = server
        self.heartbeat = site.heartbeat_seconds if server is None else None
        self.environment = rank_environment(spec, site, rendezvous, os.environ)
        if rendezvous.local_rank == 0:
            self.environment.update(declared_cores(os.environ))
        self.rank = rendezvous.rank
        self.cpus = own_cpus(spec, rendezvous.local_rank, os.sched_getaffinity(0)) if site.bind_cpus else None
        self.site = site
        self.attempt_dir = attempt_dir
        self.log = attempt_dir / run_files.events(self.rank)
        self.deadline = time.monotonic() + site.timeout_seconds
        self.stop_reason: str | None = None
        self.stopped_at: float | None = None
        self.warned = False
        self.interrupted = False
        self.leave_by: float | None = None

    def run(self) -> RankExit:
        """Blocks until the process has ended, by itself or because it was ended. Raises OSError where its output
        cannot be written."""
        # submitit's own handlers would requeue.
        signal.signal(signal.SIGUSR2, lambda *_: self._warn())
        # SIGUSR1 is what mpirun hands on, and SIGTERM not (launch/watchers.py).
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, lambda *_: self._interrupt())
        with (
            open(self.attempt_dir / run_files.stdout(self.rank), "ab") as stdout,
            open(self.attempt_dir / run_files.stderr(self.rank), "ab") as stderr,
        ):
            try:
                process = subprocess.Popen(
                    self.argv,
                    env=self.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    start_new_session=True,
                    pass_fds=opened_by_srun(os.environ),
                    preexec_fn=self._before_exec,
                )
            except OSError as error:
                stderr.write(f"{not_started(self.argv, error, os.uname().nodename)}\n".encode())
                return RankExit(self.rank, 127, time.time(), server=self.server)
            code = self._watch(process)
        # A rank that was told to end and did, saved, has not been interrupted in the middle of anything.
        interrupted = self.interrupted and self.stop_reason is not None
        ended_at = self.stopped_at or time.time()
        return RankExit(self.rank, code, ended_at, self.stop_reason, interrupted, self.server)

    def _watch(self, process: subprocess.Popen[bytes]) -> int:
        # `wait` with a time limit looks every 50 ms: too late to say which of two ranks has ended first.
        ended = threading.Thread(target=process.wait, daemon=True)
        ended.start()
        peer_failed_at: float | None = None
        looked_at = moved_at = told_at = time.monotonic()
        size = -1
        while True:
            ended.join(POLL_SECONDS)
            if not ended.is_alive():
                return process.wait()
            now = time.monotonic()
            if self.leave_by is not None and now > told_at + LOOK_SECONDS:
                # Repeated: a rank that is still starting does not listen yet.
                _tell(process, signal.SIGUSR2)
                told_at = now
            if now > looked_at + LOOK_SECONDS:
                looked_at = now
                if peer_failed_at is None and outcome.failure(self.attempt_dir) is not None:
                    peer_failed_at = now
                if (grown := _size(self.log)) != size:
                    size, moved_at = grown, now
            heartbeat = self.heartbeat
            if peer_failed_at is not None and now > peer_failed_at + PEER_GRACE_SECONDS:
                self._stop(PEER_FAILED)
            elif self.leave_by is not None and now > self.leave_by:
                self._stop("the job was told to end" if self.interrupted else LIMIT)
            elif self.leave_by is None and now > self.deadline:
                self._stop(f"the run took longer than {self.site.timeout_seconds:.0f} s (cluster.timeout_minutes)")
            elif heartbeat is not None and now > moved_at + heartbeat:
                _tell(process, signal.SIGUSR1)
                time.sleep(STACKS_SECONDS)
                self._stop(f"no progress for {heartbeat:g} s (heartbeat); its stacks are in stderr.rank{self.rank}")
            if self.stop_reason:
                return self._end(process)

    def _warn(self) -> None:
        if self.leave_by is None:
            self.warned = True
            patience = max(self.site.signal_seconds - LIMIT_MARGIN_SECONDS, self.site.signal_seconds / 2)
            self.leave_by = time.monotonic() + patience

    def _interrupt(self) -> None:
        # The word may come more than once; and only a run that had not failed before is interrupted.
        if self.stop_reason is None and not self.interrupted:
            self.interrupted = True
            self.leave_by = time.monotonic() + TERM_PATIENCE_SECONDS

    def _stop(self, why: str) -> None:
        self.stop_reason = self.stop_reason or why

    def _before_exec(self) -> None:
        """The rank gets SIGKILL when its watcher is killed, so that nothing is left running on the node.

        Slurm sends its signals to every process of a task. The rank, and what it starts to load data, is not to die of
        them before it has saved: SIGTERM is the watcher's to hear, and SIGUSR2 counts once the rank listens for it.
        """
        end_with_parent(signal.SIGKILL)
        if self.cpus:
            os.sched_setaffinity(0, self.cpus)
        for number in (signal.SIGTERM, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)

    def _end(self, process: subprocess.Popen[bytes]) -> int:
        # At once: a rank has nothing to clean up, all that it logged is written. Never 0: a rank that had to be ended
        # has not succeeded, whatever it says at the last moment.
        self.stopped_at = time.time()  # before its peers can notice, and end
        _tell(process, signal.SIGKILL)
        return process.wait() or -signal.SIGKILL


def _tell(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """The rank and what it has started. It may have ended this very moment, by itself or of the last signal."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def declared_cores(environ: Mapping[str, str]) -> dict[str, str]:
    """How many cores Slurm believes this node to have, for the rank's start event: more than it has means that it is a
    virtual node, whose figures are no scaling result. Empty where Slurm does not say."""
    node = environ.get("SLURMD_NODENAME")
    if not node:
        return {}
    try:
        cpus = Client(seconds=30).node_cpus(node)
    except SlurmUnavailable:
        return {}
    return {} if cpus is None else {environment_variables.CORES_DECLARED: str(cpus)}


def opened_by_srun(environ: Mapping[str, str]) -> tuple[int, ...]:
    """What srun has opened for a rank of MPI to speak through, and tells it by number: PMI2's way, others have
    addresses."""
    number = environ.get("PMI_FD", "")
    return (int(number),) if number.isdigit() else ()


def end_with_parent(number: signal.Signals) -> None:
    """Linux: this process gets the signal when the one that started it is gone."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, number)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1
