"""Calls functions in a framework's environment, each in a process forked from one that has imported the framework,
since importing takes longer than most calls (Python 3.8 syntax; the other half is environments.py)."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from contextlib import suppress


def serve(framework: str) -> None:
    """Answer each request, a line on standard input, with the wait status of the process that did it."""
    importlib.import_module(framework)
    for line in sys.stdin:
        request = json.loads(line)
        seconds = request.pop("seconds")
        process = os.fork()
        if process == 0:
            os.setsid()
            _call(**request)
            break  # and exits like any other program
        print(_wait(process, seconds), flush=True)


def _wait(process: int, seconds: float) -> int:
    """Return the wait status. What the process started ends with it, or after so many seconds."""

    def end(*_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)

    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return os.waitpid(process, 0)[1]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        end()


def _call(module: str, function: str, arguments: list, folder: str, stdout: str, stderr: str) -> None:
    os.chdir(folder)
    for stream, path in enumerate((os.devnull, stdout, stderr)):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), stream)
    print(json.dumps(getattr(importlib.import_module(module), function)(*arguments)))


if __name__ == "__main__":
    serve(sys.argv[1])
