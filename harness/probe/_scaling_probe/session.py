"""The one recorder of a process."""

from __future__ import annotations

import atexit
import functools
import multiprocessing
import os
import sys
from time import perf_counter
from typing import Any, Callable, Mapping, NoReturn, Optional

from _scaling_probe.arming import Arming
from _scaling_probe.ending import Refused, exit_now
from _scaling_probe.function_steps import FunctionSteps
from _scaling_probe.recorder import HOOKS, PROBE, Recorder
from _scaling_probe.settings import VARIABLE, own_rank, read
from _scaling_probe.tensorflow_hooks import MODULES as TENSORFLOW
from _scaling_probe.torch_hooks import TorchHooks
from _scaling_probe.trainers import Trainers

# None outside the harness and in child processes.
current: Optional[Recorder] = None
# What sys.exit was called with.
_status: Any = None


def begin() -> Optional[Recorder]:
    """Begin to record in this process; None if it is not a rank that the harness measures."""
    global current
    path = os.environ.get(VARIABLE)
    if current is not None or path is None or multiprocessing.parent_process() is not None:
        return current
    if "{rank}" in path:
        # The ranks are started by another launcher, whose own processes have none.
        rank = own_rank()
        if rank is None:
            return None
        path = path.replace("{rank}", rank)
    # Removed, so that programs that the script starts do not write to the same log.
    del os.environ[VARIABLE]
    try:
        current = Recorder(read(path), perf_counter())
    except (OSError, ValueError, KeyError) as error:
        print(f"error: {VARIABLE}={path} cannot be used: {error!r}", file=sys.stderr)
        raise SystemExit(1) from None
    os.register_at_fork(after_in_child=_forget)
    return current


def arm(recorder: Recorder, functions: Optional[Mapping[str, Callable[[Any], None]]] = None) -> None:
    """Put the hooks in place. functions: those of workload.step, by the module that defines them."""
    Arming({**(functions or {}), **TorchHooks(recorder).modules, **Trainers(recorder).modules, **TENSORFLOW})


def armed() -> None:
    """Begin to record in a process that was started without the runner, if it uses PyTorch."""
    recorder = begin()
    if recorder is not None:
        arm(recorder, FunctionSteps(recorder).modules)
        _register()


def marked() -> Optional[Recorder]:
    """Begin to record what scaling_probe.py tells; of PyTorch, only data and what is not training."""
    runs = current is not None
    recorder = begin()
    if recorder is not None:
        recorder.method = PROBE
        if not runs:
            arm(recorder)
            _register()
    return recorder


def _register() -> None:
    """At the end of the process, tell a script that failed from one that came to its end."""
    leave = sys.exit

    @functools.wraps(leave)
    def remembered(status: Any = None, /) -> NoReturn:
        global _status
        _status = status
        leave(status)

    sys.exit = remembered
    atexit.register(_end)


def _forget() -> None:
    """In a forked child, such as a worker of a DataLoader."""
    global current
    if current is not None:
        current.active = False
        current = None


def _end() -> None:
    """At the exit of a process that was started without the runner."""
    if current is None or (current.method == HOOKS and "torch" not in sys.modules):
        return
    error = getattr(sys, "last_value", None)
    if error is None and _status not in (None, 0):
        error = SystemExit(_status)
    if error is not None:
        current.broke_off(f"{type(error).__name__}: {error}")
    try:
        if error is None:
            current.script_ended()
    except Refused:
        pass
    if current.ended is not None:
        exit_now(current.ended.code)  # type: ignore[arg-type]
