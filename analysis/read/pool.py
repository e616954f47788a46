"""Reads the rows of many runs with several processes; if a process dies, only the run that it was reading is lost.

Each process is a fresh interpreter without pandas and has its own pipe, so it is known which run it was reading. (A
`concurrent.futures` pool breaks as a whole if one process dies.)
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from analysis.base.processes import command_calling
from analysis.base.text import printable
from analysis.read.damage import NO_FILE, Damage, damage_text
from analysis.read.run import UNREADABLE, read_run_row

# A process takes 0.15 s to start and reads about 30 MB of logs per second; fewer bytes do not justify one.
BYTES_OF_A_PROCESS = 16e6
MOST_PROCESSES = 8
CHUNK = 16  # runs handed over at once
READY = "ready"


@dataclass
class _Process:
    popen: subprocess.Popen[bytes]
    pipe: Connection
    ready: bool = False
    runs: deque[int] = field(default_factory=deque)


def read_rows(run_dirs: Sequence[Path], n_bytes: float, processes: int | None = None) -> list[dict[str, Any]]:
    """Apply `read_run_row` to each run, in order. n_bytes: total size of their logs. processes: None: by n_bytes."""
    if processes is None:
        processes = min(len(os.sched_getaffinity(0)), MOST_PROCESSES, int(n_bytes / BYTES_OF_A_PROCESS))
    if processes < 2:
        return [read_run_row(run_dir) for run_dir in run_dirs]
    rows: list[dict[str, Any] | None] = [None] * len(run_dirs)
    waiting = deque(range(len(run_dirs)))
    working: dict[Connection, _Process] = {}
    try:
        while waiting or working:
            while waiting and len(working) < processes:
                started = _start()
                working[started.pipe] = started
            for pipe in wait(list(working)):
                process = working[pipe]  # type: ignore[index]
                if not _hear(process, rows):
                    del working[process.pipe]
                    code = _end(process)
                    if not process.ready:  # processes do not work here; read the rest without them
                        processes = 0
                    elif process.runs:
                        lost = process.runs.popleft()
                        rows[lost] = _lost(run_dirs[lost], code)
                    waiting.extendleft(reversed(process.runs))
                elif not process.runs:
                    _hand(process, waiting, run_dirs)
    finally:
        for process in working.values():
            process.popen.kill()
            _end(process)
    return [read_run_row(run_dir) if row is None else row for run_dir, row in zip(run_dirs, rows, strict=True)]


def work(descriptor: int) -> None:
    """Main loop of each process: read runs until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends this process
    gc.set_threshold(200_000)  # logs are many small objects without cycles
    pipe = Connection(descriptor)
    with contextlib.suppress(EOFError, OSError):  # the parent has ended
        pipe.send(READY)
        while run_dirs := pipe.recv():
            for run_dir in run_dirs:
                try:
                    row = read_run_row(Path(run_dir))
                except MemoryError:
                    row = _unreadable(Path(run_dir), "there is not enough memory to read it")
                pipe.send(row)


def _start() -> _Process:
    ours, theirs = Pipe()
    with theirs:
        command = command_calling(__name__, "work", theirs.fileno())
        return _Process(subprocess.Popen(command, pass_fds=[theirs.fileno()]), ours)


def _hear(process: _Process, rows: list[dict[str, Any] | None]) -> bool:
    """Receive the next rows from the process; return False once it has closed its pipe."""
    try:
        message = process.pipe.recv()
    except (EOFError, OSError):
        return False
    if message == READY:
        process.ready = True
    else:
        rows[process.runs.popleft()] = message
    return True


def _hand(process: _Process, waiting: deque[int], run_dirs: Sequence[Path]) -> None:
    process.runs.extend(waiting.popleft() for _ in range(min(CHUNK, len(waiting))))
    with contextlib.suppress(OSError):  # it has died; the next read of its pipe reports that
        process.pipe.send([os.fspath(run_dirs[i]) for i in process.runs])


def _end(process: _Process) -> int:
    process.pipe.close()
    return process.popen.wait()


def _lost(run_dir: Path, code: int) -> dict[str, Any]:
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return _unreadable(run_dir, f"the process that read it died ({how}); it is tried again with the next report")


def _unreadable(run_dir: Path, reason: str) -> dict[str, Any]:
    name = printable(run_dir.name)
    damage = damage_text([Damage(name, NO_FILE, 1)])
    return {"run_id": name, "status": UNREADABLE, "reason": reason, "damage": damage}
