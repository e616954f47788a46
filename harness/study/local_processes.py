"""The processes of runs without Slurm: a study's command, and the supervisors that it started on this machine."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from harness.core import events, run_files
from harness.core.errors import UserError
from harness.study import outcome

# Longer than a supervisor gives its rank to save and exit.
END_SECONDS = 45.0
POLL_SECONDS = 0.2
# A process that is still starting misses a signal.
RESEND_SECONDS = 1.0


def running(run_dir: Path) -> int | None:
    """Process id of what runs the last attempt on this machine; None if nothing does."""
    for attempt_dir in events.attempt_dirs(run_dir)[-1:]:
        if events.alive(attempt_dir):
            return int(outcome.read_job(attempt_dir)["job_id"])
    return None


def command_of(folder: Path) -> tuple[int, str] | None:
    """Return (process id, host) of the command that is using a study; None if none is, or locks do not work there.

    Raises:
        UserError: the lock cannot be read.
    """
    try:
        handle = os.open(folder / run_files.LOCK, os.O_RDWR)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{folder / run_files.LOCK} cannot be opened: {error.strerror}") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            pid, _, host = os.read(handle, 1000).decode().strip().partition(" ")
            if pid.isdigit():
                return int(pid), host
        return None
    finally:
        os.close(handle)
    return None


def stop(folder: Path, run_ids: Iterable[str], command: bool = True) -> int:
    """Stop the study's command and what it left running on this machine: the ranks save and exit, as with Ctrl-C.

    Args:
        folder: the study.
        run_ids: its runs.
        command: False leaves the command alone.

    Returns:
        How many processes were told to stop.

    Raises:
        UserError: the command runs on another machine, or a process did not end.
    """
    told = 0
    if command and (found := command_of(folder)):
        pid, host = found
        if host != os.uname().nodename:
            raise UserError(f"the study's command runs on {host}: give this one there")
        _stop(pid, lambda: command_of(folder) != found)
        told += 1
    return told + sum(_stop_run(folder / run_files.RUNS / run_id) for run_id in run_ids)


def wait_for_end(run_dir: Path) -> None:
    """Wait for what an earlier command, now dead, left running of a run. Raises UserError if it does not end."""
    deadline = time.monotonic() + END_SECONDS
    while (pid := running(run_dir)) is not None:
        if time.monotonic() > deadline:
            raise UserError(
                f"{run_dir.name} is still run by process {pid}, which an earlier command left; wait for it, or stop it "
                f"with python -m harness.cancel"
            )
        time.sleep(POLL_SECONDS)


def _stop_run(run_dir: Path) -> bool:
    pid = running(run_dir)
    if pid is not None:
        _stop(pid, lambda: running(run_dir) is None)
    return pid is not None


def _stop(pid: int, ended: Callable[[], bool]) -> None:
    deadline, resend = time.monotonic() + END_SECONDS, 0.0
    while not ended():
        if time.monotonic() > deadline:
            raise UserError(
                f"process {pid} did not end within {END_SECONDS:.0f} s of SIGTERM; end it with kill -9 {pid}"
            )
        if time.monotonic() > resend:
            resend = time.monotonic() + RESEND_SECONDS
            try:
                os.kill(pid, signal.SIGTERM)
            except ProcessLookupError:
                pass
            except PermissionError:
                raise UserError(f"process {pid} belongs to another user, who can stop it") from None
        time.sleep(POLL_SECONDS)
