"""Calls functions in a framework's environment, or runs the project's commands, each in a process forked from one that
has imported what they need, since importing takes longer than most calls (Python 3.8 syntax; the other halves are
environments.py and forked_commands.py)."""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import signal
import sys
from contextlib import suppress


def serve(modules: list) -> None:
    """Answer each request, a line on standard input, with the wait status of the process that did it."""
    gc.disable()
    for module in modules:
        importlib.import_module(module)
    gc.freeze()  # or each process would look through all of it when it ends, which takes longer than most calls
    gc.enable()
    for line in sys.stdin:
        request = json.loads(line)
        seconds, is_command = request.pop("seconds"), "argv" in request
        process = os.fork()
        if process == 0:
            os.setsid()
            (_run if is_command else _call)(**request)
            break  # a command exits like any other program
        print(_wait(process, seconds, not is_command), flush=True)


def _wait(process: int, seconds: float, to_the_last: bool) -> int:
    """Return the wait status. What the process started ends after so many seconds; to_the_last: or with it."""

    def end(*_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)

    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return os.waitpid(process, 0)[1]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        if to_the_last:
            end()


def _call(module: str, function: str, arguments: list, **streams: str) -> None:
    _move_to(**streams)
    print(json.dumps(getattr(importlib.import_module(module), function)(*arguments)), flush=True)
    sys.stderr.flush()
    os._exit(0)  # to take a framework apart takes as long as most calls; the whole session is killed next


def _run(argv: list, environ: dict, path: list, **streams: str) -> None:
    """As `python -m`. path: what PYTHONPATH says, in place of the server's."""
    _move_to(**streams)
    own = {os.path.dirname(os.path.abspath(__file__)), *os.environ["PYTHONPATH"].split(os.pathsep)}
    sys.path[:] = [os.getcwd(), *path, *(entry for entry in sys.path if entry not in own)]
    os.environ.clear()
    os.environ.update(environ)
    sys.argv = argv
    runpy.run_module(argv[0], run_name="__main__", alter_sys=True)


def _move_to(folder: str, stdout: str, stderr: str) -> None:
    os.chdir(folder)
    for stream, path in enumerate((os.devnull, stdout, stderr)):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), stream)


if __name__ == "__main__":
    serve(sys.argv[1:])
