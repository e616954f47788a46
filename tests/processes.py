"""Finds and waits for the real processes of a test's study."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def workers(folder: Path, gpus: int) -> dict[int, int]:
    """Return rank -> process id for ranks on this machine, including virtual nodes, in runs on this many GPUs whose
    results are in the folder; parameter servers on nodes of their own are numbered after the ranks."""
    found = {}
    for pid, argv, environ in _processes():
        if {"harness.worker", "harness.worker.servers.standalone"} & set(argv) and any(
            f"{folder}/" in word and f"-{gpus}gpu-" in word for word in argv
        ):
            # Empty if the process is just ending.
            found.update({int(word[5:]): pid for word in environ if word.startswith("RANK=")})
    return found


def supervisors(folder: Path) -> list[int]:
    """Return the process ids of jobs' tasks, one per rank, for the studies in the folder."""
    return [
        pid
        for pid, argv, _ in _processes()
        if {"harness.node.array_task", "harness.launch.allocation"} & set(argv)
        and "python" in Path(argv[0]).name
        and any(f"{folder}/" in word for word in argv)
    ]


def local_supervisors(folder: Path) -> list[int]:
    """Return the process ids of the supervisors of ranks started without Slurm, for the studies in the folder."""
    return [
        pid
        for pid, argv, _ in _processes()
        if "submitit.core._submit" in argv and any(word.startswith(f"{folder}/") for word in argv)
    ]


def servers(folder: Path, of_rank: int | None = None) -> list[int]:
    """Return the process ids of colocated parameter servers of a study started in the folder, or only of those started
    by the rank with this process id."""
    return [
        pid
        for pid, argv, _ in _processes()
        if "harness.worker.servers" in argv
        and (of_rank is None or str(of_rank) in argv)
        and Path(f"/proc/{pid}/cwd").resolve() == folder.resolve()
    ]


def listening_ports(pid: int) -> set[int]:
    """Return the TCP ports on which a process of this machine listens; empty if it has ended."""
    held = set()
    with contextlib.suppress(OSError):
        held = {os.readlink(descriptor) for descriptor in Path(f"/proc/{pid}/fd").iterdir()}
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    # proc(5): local address, state (0A: listening), inode.
    return {int(line[1].split(":")[1], 16) for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in held}


@contextlib.contextmanager
def command_lines(part: str) -> Iterator[set[str]]:
    """Collect, while the body runs, every command line with this part that a user of this machine can see (`ps`)."""
    seen: set[str] = set()
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.05):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    line = path.read_bytes().decode(errors="replace").replace("\0", " ")
                    if part in line:
                        seen.add(line)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield seen
    finally:
        ended.set()
        looking.join()


def _processes() -> Iterator[tuple[int, list[str], list[str]]]:
    """Yield process id, arguments and environment of every accessible process."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                argv = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                environ = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            yield int(entry.name), argv, environ


def wait_for(condition: Callable[[], Any], seconds: float = 240) -> Any:
    """Return the first true value of the condition. Raises AssertionError after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s")
