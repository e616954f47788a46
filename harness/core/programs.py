"""Runs another program to its end, within a deadline."""

from __future__ import annotations

import subprocess
from collections.abc import Callable


class NoAnswer(Exception):
    """A program could not be started or did not end in time. The message names the program; the cause is the error
    that subprocess raised."""


def run(
    *argv: str, seconds: float, stdin: str | None = None, before: Callable[[], object] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a program and captures what it prints.

    Args:
        seconds: the deadline.
        stdin: its input.
        before: called in the child process before the program starts.

    Raises:
        NoAnswer
    """
    try:
        return subprocess.run(
            list(argv), capture_output=True, text=True, timeout=seconds, input=stdin, preexec_fn=before
        )
    except subprocess.TimeoutExpired as error:
        raise NoAnswer(f"{argv[0]} did not answer within {seconds:.0f} s") from error
    except OSError as error:
        raise NoAnswer(f"{argv[0]}: {error.strerror}") from error
