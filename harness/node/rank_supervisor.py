"""Supervises one rank's process on a node: starts it in the framework's environment, monitors it, and stops it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO

from harness.core import environment_variables, run_files
from harness.core.rendezvous import Rendezvous
from harness.core.spec import RunSpec, Site
from harness.core.system import disk, secret_names
from harness.core.system.secret_names import Mask
from harness.node.command import not_started, profiler_command, rank_command, rank_cpus, rank_environment
from harness.slurm.client import Client, SlurmUnavailable
from harness.study import outcome, rank_exits
from harness.study.rank_exits import PEER_FAILED, RankExit

POLL_SECONDS = 0.2
# Interval for checking files of this rank and its peers, in a folder shared by many nodes.
CHECK_SECONDS = 1.0
# Bytes of output that are read at once; how long a process that has ended may leave its output open.
CHUNK_BYTES = 1 << 16
OUTPUT_SECONDS = 5.0
# How long peers may continue after a rank has failed. Their collectives usually raise earlier.
PEER_GRACE_SECONDS = 5.0
# After SIGTERM, Slurm waits KillWait (30 s by default) before SIGKILL: time to finish a block and save.
TERM_GRACE_SECONDS = 20.0
# Part of the time between the scheduler's warning and the wall limit that is kept for killing ranks that did not exit.
LIMIT_MARGIN_SECONDS = 10.0
# After this, a supervisor that has not begun on a full disk will not.
BEGIN_SECONDS = 10.0
# How long a stalled rank may take to write its stacks.
STACKS_SECONDS, STACKS_LINES = 1.0, 500
# What the stack of a rank that waits for others shows, in the names of functions and files.
WAITING = re.compile(
    r"all_?reduce|all_?gather|reduce_scatter|broadcast|barrier|backward|synchronize|block_until_ready|"
    r"/distributed/|/servers/client|/horovod|mpi4py|/emulated/link"
)
TOLD_TO_END = "the job was told to end"
WALL_LIMIT_REACHED = "the wall limit was reached before a block of steps ended, so the run could not save"


class RankSupervisor:
    """Runs one rank's process from start to end.

    The ranks save at the end of the current block and exit after either of two signals: SIGUSR2 (`warned`: the job is
    about to reach its time limit) and SIGTERM (`interrupted`: the scheduler or the user stops the job).

    With `server`, the process is a parameter server on a node of its own. It ends once all workers have disconnected,
    and writes no events from which progress could be judged.
    """

    wall_limit_reached = WALL_LIMIT_REACHED

    def __init__(
        self,
        spec: RunSpec,
        site: Site,
        rendezvous: Rendezvous,
        run_dir: Path,
        attempt_dir: Path,
        server: int | None = None,
    ) -> None:
        self.server = server
        self.heartbeat = site.heartbeat_seconds if server is None else None
        self.rank = rendezvous.rank
        self.processes = spec.processes.world_size + spec.server_nodes
        self.argv = self._command(spec, site, rendezvous, run_dir, attempt_dir)
        self.environment = self._environment(spec, site, rendezvous, attempt_dir)
        if rendezvous.local_rank == 0:
            self.environment.update(declared_cores(os.environ))
        self.cpus = rank_cpus(spec, rendezvous.local_rank, os.sched_getaffinity(0)) if site.bind_cpus else None
        self.cwd: str | None = None
        self.site = site
        self.attempt_dir = attempt_dir
        self.log = attempt_dir / run_files.events(self.rank)
        self.deadline = time.monotonic() + site.timeout_seconds
        self.stop_reason: str | None = None
        self.stopped_at: float | None = None
        self.warned = False
        self.interrupted = False
        self.exit_by: float | None = None
        self.asked_at = 0.0
        self.waited: bool | None = None
        self.secrets = secret_names.variables(os.environ)
        self._readers: list[threading.Thread] = []
        self._all_have_begun = False

    def _command(
        self, spec: RunSpec, site: Site, rendezvous: Rendezvous, run_dir: Path, attempt_dir: Path
    ) -> list[str]:
        module = "harness.worker" if self.server is None else "harness.worker.servers.standalone"
        profiler = profiler_command(spec, attempt_dir, rendezvous.rank) if self.server is None else ()
        return rank_command(site, run_dir, attempt_dir, module=module, profiler=profiler)

    def _environment(self, spec: RunSpec, site: Site, rendezvous: Rendezvous, _: Path) -> dict[str, str]:
        return rank_environment(spec, site, rendezvous, os.environ)

    def run(self) -> RankExit:
        """Start the process and wait until it has ended or was killed.

        Raises:
            OSError: its output files cannot be written.
        """
        # Replaces submitit's handlers, which would requeue the job.
        signal.signal(signal.SIGUSR2, lambda *_: self._warn())
        # mpirun forwards SIGUSR1 but not SIGTERM (launch/supervisors.py).
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, lambda *_: self._interrupt())
        with (
            open(self.attempt_dir / run_files.stdout(self.rank), "ab") as stdout,
            open(self.attempt_dir / run_files.stderr(self.rank), "ab") as stderr,
        ):
            cores = self._cores()
            try:
                process = self._start(stdout, stderr)
            except OSError as error:
                stderr.write(f"{not_started(self.argv, error, os.uname().nodename)}\n".encode())
                return RankExit(self.rank, 127, time.time(), server=self.server)
            try:
                code = self._watch(process)
            except OSError:
                self._kill(process)
                raise
            self._finish_reading()
            if code < 0 or code > 128:  # by a signal, of a process in a container too; else a core file is a peer's
                self._keep_core(process.pid, cores, stderr)
            ended = self._ended(code)
            sizes = {rank: size_of(self._log_of(rank)) for rank in self.ranks}
            return replace(ended, log_bytes={str(rank): size for rank, size in sizes.items() if size >= 0})

    def _start(self, stdout: IO[bytes], stderr: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start the process. Where it knows secrets, its output is read here, so that they can be masked in it."""
        if not self.secrets:
            return self._popen(stdout, stderr)
        process = self._popen(subprocess.PIPE, subprocess.PIPE)
        for pipe, file in ((process.stdout, stdout), (process.stderr, stderr)):
            assert pipe is not None
            self._read_by_thread(_copy_masked, pipe, file, Mask(self.secrets))
        return process

    def _read_by_thread(self, read: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=read, args=arguments, daemon=True)
        thread.start()
        self._readers.append(thread)

    def _finish_reading(self) -> None:
        """Wait until the output is read. A process that was left behind may keep it open."""
        for thread in self._readers:
            thread.join(OUTPUT_SECONDS)

    def _popen(self, stdout: IO[bytes] | int, stderr: IO[bytes] | int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.argv,
            cwd=self.cwd,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            pass_fds=pmi_descriptors(os.environ),
            preexec_fn=self._before_exec,
        )

    def _ended(self, code: int) -> RankExit:
        # A rank that saved and exited when asked to was not interrupted.
        interrupted = self.interrupted and self.stop_reason is not None
        ended_at = self.stopped_at or time.time()
        reason = disk.NO_SPACE if code == disk.FULL else self.stop_reason
        return RankExit(self.rank, code, ended_at, reason, interrupted, self.server, self.waited)

    @property
    def ranks(self) -> range:
        """The ranks that the process is, or that it starts."""
        return range(self.rank, self.rank + 1)

    def _log_of(self, rank: int) -> Path:
        return self.attempt_dir / run_files.events(rank)

    def _cores(self) -> dict[str, tuple[int, int]]:
        """Return (inode, modification time in ns) of each core file in the working directory, to know those of others.

        The time is that of the file system, which is not compared with this node's clock.
        """
        found = {}
        for path in Path(self.cwd or os.curdir).glob("core*"):
            with contextlib.suppress(OSError):
                stat = path.stat()
                found[path.name] = stat.st_ino, stat.st_mtime_ns
        return found

    def _keep_core(self, pid: int, others: Mapping[str, tuple[int, int]], stderr: IO[bytes]) -> None:
        """Move a core file, which Linux by default writes into the user's working directory, to the attempt's folder.

        Whether there are any is the site's decision (`ulimit -c`). others: core files that were there before.
        """
        cores = self._cores()
        for name in (f"core.{pid}", "core"):
            written = Path(self.cwd or os.curdir, name)
            with contextlib.suppress(OSError):
                if cores.get(name) != others.get(name) and written.is_file():
                    kept = self.attempt_dir / f"core.rank{self.rank}"
                    shutil.move(written, kept)
                    stderr.write(f"core file: {kept}\n".encode())
                    return

    def _watch(self, process: subprocess.Popen[bytes]) -> int:
        # `wait` with a timeout polls every 50 ms, too coarse to tell which of two ranks ended first.
        ended = threading.Thread(target=process.wait, daemon=True)
        ended.start()
        peer_failed_at: float | None = None
        began_at = checked_at = progress_at = time.monotonic()
        size = -1
        while True:
            ended.join(POLL_SECONDS)
            if not ended.is_alive():
                return process.wait()
            now = time.monotonic()
            if self.exit_by is not None:
                self._ask_to_leave(process, now)
            if now > checked_at + CHECK_SECONDS:
                checked_at = now
                if peer_failed_at is None and rank_exits.any_failed(self.attempt_dir):
                    peer_failed_at = now
                if now > began_at + BEGIN_SECONDS:
                    self._check_that_all_have_begun()
                if (new_size := self._size_of_logs()) != size:
                    size, progress_at = new_size, now
                self._check(process)
            heartbeat = self.heartbeat
            if peer_failed_at is not None and now > peer_failed_at + PEER_GRACE_SECONDS:
                first = rank_exits.failure(self.attempt_dir)
                stalled = heartbeat is not None and now > progress_at + heartbeat / 2
                if stalled and first is not None and first.waited is not None:
                    self._stop(f"no progress for {heartbeat:g} s (heartbeat){self._stacks(process)}")
                self._stop(PEER_FAILED)
            elif self.exit_by is not None and now > self.exit_by:
                self._stop(TOLD_TO_END if self.interrupted else self.wall_limit_reached)
            elif self.exit_by is None and now > self.deadline:
                self._stop(f"the run took longer than {self.site.timeout_seconds:.0f} s (cluster.timeout_minutes)")
            elif heartbeat is not None and now > progress_at + heartbeat:
                self._stop(f"no progress for {heartbeat:g} s (heartbeat){self._stacks(process)}")
            if self.stop_reason:
                return self._kill(process)

    def _ask_to_leave(self, process: subprocess.Popen[bytes], now: float) -> None:
        """Called at every poll once the job is about to end. Repeated: a rank that starts has no handler yet."""
        if now > self.asked_at + CHECK_SECONDS:
            send(process, signal.SIGUSR2)
            self.asked_at = now

    def _check(self, process: subprocess.Popen[bytes]) -> None:
        """Called every CHECK_SECONDS."""

    def _check_that_all_have_begun(self) -> None:
        """Stop if the disk was full before another supervisor could make a file: it cannot tell that it failed."""
        if not self._all_have_begun:
            self._all_have_begun = rank_exits.have_begun(self.attempt_dir, self.processes)
            if not self._all_have_begun and disk.is_full(self.attempt_dir):
                self._stop(disk.NO_SPACE)

    def _size_of_logs(self) -> int:
        """Bytes whose growth is progress."""
        return size_of(self.log)

    def _stacks(self, process: subprocess.Popen[bytes]) -> str:
        """Have a stalled rank write its stacks. Returns where they are, for the reason."""
        send(process, signal.SIGUSR1)
        time.sleep(STACKS_SECONDS)
        stacks = "\n".join(outcome.tail(self.attempt_dir / run_files.stderr(self.rank), STACKS_LINES))
        _, found, current = stacks.rpartition("Current thread ")
        self.waited = bool(WAITING.search(current.split("\n\n")[0])) if found else None
        return f"; its stacks are in stderr.rank{self.rank}"

    def _warn(self) -> None:
        if self.exit_by is None:
            self.warned = True
            grace = max(self.site.signal_seconds - LIMIT_MARGIN_SECONDS, self.site.signal_seconds / 2)
            self.exit_by = time.monotonic() + grace

    def _interrupt(self) -> None:
        # The signal may arrive more than once. A run that has already failed is not interrupted.
        if self.stop_reason is None and not self.interrupted:
            self.interrupted = True
            self.exit_by = time.monotonic() + TERM_GRACE_SECONDS

    def _stop(self, reason: str) -> None:
        self.stop_reason = self.stop_reason or reason

    def _before_exec(self) -> None:
        """Runs in the child before exec.

        The rank is killed together with its supervisor, so that no process is left on the node.

        Slurm signals every process of a task. The rank and its data loaders must survive that until the rank has saved:
        SIGTERM is for the supervisor only, and SIGUSR2 takes effect once the rank has installed its handler.
        """
        die_with_parent(signal.SIGKILL)
        if self.cpus:
            os.sched_setaffinity(0, self.cpus)
        for number in (signal.SIGTERM, signal.SIGUSR2):
            signal.signal(number, signal.SIG_IGN)

    def _kill(self, process: subprocess.Popen[bytes]) -> int:
        # SIGKILL right away: a rank has nothing to clean up, and its log is already on disk. Never returns 0: a rank
        # that was killed did not succeed, even if it ended by itself at the last moment.
        self.stopped_at = time.time()  # before its peers can notice and fail
        send(process, signal.SIGKILL)
        return process.wait() or -signal.SIGKILL


def _copy_masked(pipe: IO[bytes], file: IO[bytes], mask: Mask) -> None:
    """Copy output until its end, also if the file cannot be written: the process must not block on a full pipe."""
    while data := os.read(pipe.fileno(), CHUNK_BYTES):
        with contextlib.suppress(OSError):
            file.write(mask.feed(data))
            file.flush()
    with contextlib.suppress(OSError):
        file.write(mask.rest())
        file.flush()


def send(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signal the rank and its child processes, which may have just ended."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def declared_cores(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the number of cores that Slurm assumes on this node, for the rank's start event; empty if unknown.

    More than the machine has means a virtual node, whose measurements say nothing about scaling.
    """
    node = environ.get("SLURMD_NODENAME")
    if not node:
        return {}
    try:
        cpus = Client(seconds=30).node_cpus(node)
    except SlurmUnavailable:
        return {}
    return {} if cpus is None else {environment_variables.CORES_DECLARED: str(cpus)}


def pmi_descriptors(environ: Mapping[str, str]) -> tuple[int, ...]:
    """File descriptors that srun opened for an MPI rank and passes by number, as PMI2 does."""
    number = environ.get("PMI_FD", "")
    return (int(number),) if number.isdigit() else ()


def die_with_parent(number: signal.Signals) -> None:
    """Linux: deliver a signal to this process when its parent dies."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, number)


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1
