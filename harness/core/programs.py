"""Runs other programs with a deadline."""

from __future__ import annotations

import subprocess
from collections.abc import Callable


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
