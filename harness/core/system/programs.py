"""Runs other programs with a deadline, and asks about processes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path


class NoAnswer(Exception):
    """A program could not be started or did not end in time.

    The message names the program; the cause is the error raised by subprocess.
    """


def run(
    *argv: str, seconds: float, stdin: str | None = None, before: Callable[[], object] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program and capture its output.

    Args:
        seconds: deadline.
        stdin: input of the program.
        before: called in the child process before the program starts.

    Raises:
        NoAnswer: it could not be started or did not end in time.
    """
    try:
        return subprocess.run(
            list(argv), capture_output=True, text=True, timeout=seconds, input=stdin, preexec_fn=before
        )
    except subprocess.TimeoutExpired as error:
        raise NoAnswer(f"{argv[0]} did not answer within {seconds:.0f} s") from error
    except OSError as error:
        raise NoAnswer(f"{argv[0]}: {error.strerror}") from error


def exists(pid: int) -> bool:
    """Whether a process of this user exists; not one that has ended and whose parent has not noticed."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:  # not Linux, or just ended
        return not Path("/proc/self/stat").exists()
    except OSError:
        return False
