"""The one recorder of a process."""

from __future__ import annotations

import os
import sys
from time import perf_counter

from _scaling_probe.recorder import Recorder
from _scaling_probe.settings import VARIABLE, read

# None outside the harness and in child processes.
current: Recorder | None = None


def begin() -> Recorder | None:
    """Begin to record in this process; None if it is not a rank that the harness measures."""
    global current
    # Removed, so that programs that the script starts do not write to the same log.
    path = os.environ.pop(VARIABLE, None)
    if path is None or current is not None:
        return current
    try:
        current = Recorder(read(path), perf_counter())
    except (OSError, ValueError, KeyError) as error:
        print(f"error: {VARIABLE}={path} cannot be used: {error!r}", file=sys.stderr)
        raise SystemExit(1) from None
    os.register_at_fork(after_in_child=_forget)
    return current


def _forget() -> None:
    """In a forked child, such as a worker of a DataLoader."""
    global current
    if current is not None:
        current.active = False
        current = None
