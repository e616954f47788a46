"""How the probe ends a training: exceptions that no `except Exception` catches, and a deadline behind them."""

from __future__ import annotations

import contextlib
import os
import sys
import threading

# Time for `finally` blocks and exit handlers of the user's code, which may wait for ranks that have gone.
DEADLINE_SECONDS = 20.0


class StopTraining(SystemExit):
    """Enough steps were measured. Also without the runner, the process ends with code 0 and no traceback."""


class Refused(SystemExit):
    """The training cannot be measured; the reason is on stderr."""


def exit_within_deadline(code: int) -> None:
    """End the process if it is still there after DEADLINE_SECONDS."""
    timer = threading.Timer(DEADLINE_SECONDS, exit_now, (code,))
    timer.daemon = True
    timer.start()


def exit_now(code: int) -> None:
    """End the process without the interpreter's clean-up, in which a library can block or abort."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
    os._exit(code)
