"""Supervises one process of the user's own training."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from harness.core import run_files
from harness.core.events import EventWriter
from harness.core.measuring.environment import start_facts, text_of
from harness.core.rendezvous import Rendezvous, meeting_host
from harness.core.serialization import write_json
from harness.core.spec import RunSpec, Site
from harness.core.system import disk
from harness.core.system.secret_names import Mask
from harness.core.workload import patterns
from harness.node import workload, workload_environment
from harness.node.output_recorder import UNKNOWN, OutputRecorder
from harness.node.rank_supervisor import (
    CHECK_SECONDS,
    CHUNK_BYTES,
    OUTPUT_SECONDS,
    TERM_GRACE_SECONDS,
    TOLD_TO_END,
    RankSupervisor,
    die_with_parent,
    send,
    size_of,
)
from harness.node.stop_channel import Address, served, wait_for_address
from harness.study import rank_exits
from harness.study.rank_exits import PEER_FAILED, RankExit

WALL_LIMIT = "the wall limit was reached before the training ended; set a longer cluster.timeout_minutes"
# Slurm sends SIGTERM to this process and the training; the supervisor's own may arrive last.
SIGNAL_SECONDS = 0.5
KILL_POLL_SECONDS = 0.02
# Of stderr, in which the first error is looked for.
TAIL_BYTES = 2**20
# Also of argparse.
ERROR = re.compile(r"(?:\S+: )?error: (.+)")


def supervisor_of(
    spec: RunSpec, site: Site, rendezvous: Rendezvous, run_dir: Path, attempt_dir: Path, server: int | None
) -> RankSupervisor:
    """Build the supervisor of a process. server: as in RankSupervisor."""
    if spec.workload is not None:
        return WorkloadSupervisor(spec, site, rendezvous, run_dir, attempt_dir)
    return RankSupervisor(spec, site, rendezvous, run_dir, attempt_dir, server)


class WorkloadSupervisor(RankSupervisor):
    """Runs one process of the user's own training from start to end.

    It saves nothing on our request: when the job is told to end, its process group gets SIGTERM, and SIGKILL after
    TERM_GRACE_SECONDS. With `workload.pattern`, rank 0's supervisor reads the output, and all supervisors end their
    processes in the same way once it has shown enough, which is then the end of a completed run.
    """

    wall_limit_reached = WALL_LIMIT

    def __init__(self, spec: RunSpec, site: Site, rendezvous: Rendezvous, run_dir: Path, attempt_dir: Path) -> None:
        super().__init__(spec, site, rendezvous, run_dir, attempt_dir)
        assert spec.workload is not None
        self.spec, self.rendezvous, self.workload = spec, rendezvous, spec.workload
        self.cwd = None if site.container else site.cwd
        facts = start_facts(spec, rendezvous, self.cpus or os.sched_getaffinity(0), self.environment)
        self.start = {**facts, "device": spec.cluster.device}
        self.recorder: OutputRecorder | None = None
        self.enough_at: float | None = None
        self._terminated = False
        self._reading = threading.Lock()
        self._reader_error: Exception | None = None

    def run(self) -> RankExit:
        """Start the process and wait until it has ended or was killed.

        Raises:
            OSError: its files cannot be written, or no port is free.
        """
        _adopt_orphans()
        with contextlib.ExitStack() as stack:
            if self.workload.pattern is None:
                try:
                    channel = stack.enter_context(self._channel())
                except InterruptedError:
                    return RankExit(self.rank, 1, time.time(), PEER_FAILED)
                except TimeoutError as error:
                    return RankExit(self.rank, 1, time.time(), str(error))
                workload.write_probe_files(self.spec, self.attempt_dir, self.rendezvous, self.start, channel)
            return super().run()

    @contextlib.contextmanager
    def _channel(self) -> Iterator[Address | None]:
        """Serve the stop channel, or find it, if there is something to decide."""
        if not self.workload.stop or self.spec.measure.precision is None:
            yield None
        elif self.rank > 0:
            yield wait_for_address(self.attempt_dir, lambda: rank_exits.any_failed(self.attempt_dir))
        else:
            ranks = self.spec.gpus if self.workload.starts_ranks else self.rendezvous.world_size
            host = meeting_host(self.rendezvous)
            with served(self.spec.measure, ranks, host, self.attempt_dir) as address:
                yield address

    def _command(
        self, spec: RunSpec, site: Site, rendezvous: Rendezvous, run_dir: Path, attempt_dir: Path
    ) -> list[str]:
        return workload.command(spec, site, run_dir, attempt_dir, rendezvous, os.environ)

    def _environment(self, spec: RunSpec, site: Site, rendezvous: Rendezvous, attempt_dir: Path) -> dict[str, str]:
        return workload.environment(spec, site, attempt_dir, rendezvous, os.environ)

    def _start(self, stdout: IO[bytes], stderr: IO[bytes]) -> subprocess.Popen[bytes]:
        if self.rank == 0:
            workload_environment.write(self.site, self.attempt_dir, self.cwd, self.environment)
        if self.workload.pattern is None:
            return super()._start(stdout, stderr)
        if self.rank > 0:
            self._write("start", **self.start, **UNKNOWN, versions={}, startup_seconds={})
            return super()._start(stdout, stderr)
        self.recorder = OutputRecorder(self.spec, self.log, self.start)
        process = self._popen(subprocess.PIPE, subprocess.PIPE)
        for number, (pipe, file) in enumerate(((process.stdout, stdout), (process.stderr, stderr))):
            assert pipe is not None
            self._read_by_thread(self._read, pipe, file, number)
        return process

    def _read(self, pipe: IO[bytes], file: IO[bytes], number: int) -> None:
        """Copy the output to its file, and measure from it."""
        assert self.recorder is not None
        mask, going = Mask(self.secrets), True
        while going:
            going = bool(output := os.read(pipe.fileno(), CHUNK_BYTES))
            data = mask.feed(output) if going else mask.rest()
            with self._reading:
                try:
                    file.write(data)
                    file.flush()
                    self.recorder.feed(data, number)
                except Exception as error:
                    # Go on reading: the training must not block on a full pipe.
                    self._reader_error = self._reader_error or error

    def _before_exec(self) -> None:
        die_with_parent(signal.SIGKILL)
        if self.cpus:
            os.sched_setaffinity(0, self.cpus)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, signal.SIG_DFL)
        if "SLURM_JOB_ID" in self.environment and not self.workload.signals:
            # Slurm announces the wall limit to every process of a task, and by default SIGUSR2 kills.
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)

    def _ask_to_leave(self, process: subprocess.Popen[bytes], now: float) -> None:
        if self.interrupted:
            self._terminate(process)

    def _terminate(self, process: subprocess.Popen[bytes]) -> None:
        if not self._terminated:
            self._terminated = True
            send(process, signal.SIGTERM)

    def _check(self, process: subprocess.Popen[bytes]) -> None:
        """End the process once its output has shown enough: at about the same time on all nodes."""
        if self.workload.pattern is None:
            return
        file, now = self.attempt_dir / run_files.ENOUGH, time.monotonic()
        if self.enough_at is None:
            if self.recorder is not None and self.recorder.enough is not None:
                write_json(file, {"stopped": self.recorder.enough, "t": time.time()})
                self.enough_at = now + CHECK_SECONDS
            elif self.rank > 0 and file.exists():
                self.enough_at = now
        elif now >= self.enough_at:
            self._terminate(process)
            if now > self.enough_at + TERM_GRACE_SECONDS:
                send(process, signal.SIGKILL)

    def _size_of_logs(self) -> int:
        if self.workload.pattern is None:
            return sum(map(size_of, self._logs()))
        return sum(size_of(self.attempt_dir / of(self.rank)) for of in (run_files.stdout, run_files.stderr))

    @property
    def ranks(self) -> range:
        return workload.ranks_of(self.spec, self.rank)

    def _logs(self) -> list[Path]:
        return [self._log_of(rank) for rank in self.ranks]

    def _stacks(self, _: subprocess.Popen[bytes]) -> str:
        what = "its output did not grow" if self.workload.pattern else "no block of steps ended"
        return f": {what}; if that is normal, set a longer heartbeat=<seconds>, or heartbeat=null"

    def _watch(self, process: subprocess.Popen[bytes]) -> int:
        code = super()._watch(process)
        send(process, signal.SIGKILL)  # what it has left behind
        _kill_orphans()
        self._finish_reading()
        return code

    def _ended(self, code: int) -> RankExit:
        ended_at = self.stopped_at or time.time()
        if self.enough_at is None and self.rank > 0 and (self.attempt_dir / run_files.ENOUGH).exists():
            self.enough_at = time.monotonic()
        if self.enough_at is not None and self.stop_reason is None:
            code = 0
        elif code in (-signal.SIGTERM, 128 + signal.SIGTERM) and not self.interrupted:
            time.sleep(SIGNAL_SECONDS)
        if self.interrupted and self.enough_at is None:
            # Whatever its code: a training that was told to end did not come to its end.
            told = self.stop_reason or TOLD_TO_END
            return RankExit(self.rank, code or -signal.SIGTERM, ended_at, told, interrupted=True)
        reason = self.stop_reason
        if code == 0 and reason is None and (reason := self._unmeasured()) is not None:
            code = 1
        elif code != 0 and reason is None and disk.is_full(self.attempt_dir):
            reason = f"exited with code {code}; there is {disk.NO_SPACE}"
        elif code != 0 and reason is None and self.workload.starts_ranks:
            # The last lines are the launcher's own.
            error = first_error(self.attempt_dir / run_files.stderr(self.rank))
            reason = None if error is None else f"exited with code {code}; the first error of its ranks: {error}"
        return RankExit(self.rank, code, ended_at, reason)

    def _unmeasured(self) -> str | None:
        """Write the last events of a pattern. Returns why there is no measurement, or None."""
        if self._reader_error is not None:
            return f"its output could not be recorded: {self._reader_error}"
        if self.recorder is not None:
            return self.recorder.finish()
        if self.workload.pattern is not None:
            self._write("end", steps=None, samples_seen=None, samples=None, weights_checksum=None)
            return None
        if any(size_of(file) > 0 for file in self._logs()):
            return None
        return (
            "it ended without a training step that could be seen; set workload.pattern to read steps from its output, "
            "or call the probe in its code (scaling_probe)"
        )

    def _write(self, event: str, **values: object) -> None:
        log = EventWriter(self.log, self.rank)
        log.write(event, **values)
        log.close()


def first_error(stderr: Path) -> str | None:
    """Return what the first traceback, or line such as 'error: ...' or 'train.py: error: ...', says."""
    with open(stderr, "rb") as file:
        file.seek(max(0, size_of(stderr) - TAIL_BYTES))
        text = file.read().decode("utf-8", errors="replace")
    lines = [patterns.RANK.sub("", line, count=1) for line in text.splitlines()]
    for number, line in enumerate(lines):
        if error := ERROR.match(line):
            return error[1]
        if line.startswith("Traceback (most recent call last)"):
            return next((after for after in lines[number + 1 :] if after and not after[0].isspace()), None)
    return None


def _adopt_orphans() -> None:
    """Linux: become the parent of descendants whose parent ends, such as ranks of torchrun, which are in no group."""
    pr_set_child_subreaper = 36
    ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1)


def _kill_orphans() -> None:
    """Kill all children, and those that become children by that."""
    deadline = time.monotonic() + OUTPUT_SECONDS
    while (children := _children()) and time.monotonic() < deadline:
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(KILL_POLL_SECONDS)


def _children() -> list[int]:
    lists = [text_of(path) or "" for path in Path("/proc/self/task").glob("*/children")]
    return [int(pid) for text in lists for pid in text.split()]
