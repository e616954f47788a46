"""Looking at real processes of a test's own study, and waiting for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def workers(folder: Path, gpus: int) -> dict[int, int]:
    """rank -> process id of the ranks on this machine (its virtual nodes too) of the runs of so many GPUs whose results
    lie in the folder; parameter servers beside no rank are numbered after them."""
    found = {}
    for pid, argv, environ in _processes():
        if {"harness.worker", "harness.worker.servers.standalone"} & set(argv) and any(
            f"{folder}/" in word and f"-{gpus}gpu-" in word for word in argv
        ):
            # None in a process that ends just now.
            found.update({int(word[5:]): pid for word in environ if word.startswith("RANK=")})
    return found


def supervisors(folder: Path) -> list[int]:
    """Process ids of the tasks of jobs, one per rank, for the studies in the folder."""
    return [
        pid
        for pid, argv, _ in _processes()
        if {"harness.node.array_task", "submitit.core._submit"} & set(argv)
        and "python" in Path(argv[0]).name
        and any(f"{folder}/" in word for word in argv)
    ]


def servers(folder: Path, of_rank: int | None = None) -> list[int]:
    """Process ids of the parameter servers beside ranks of a study that was started in the folder, or of those that the
    rank with this process id has started."""
    return [
        pid
        for pid, argv, _ in _processes()
        if "harness.worker.servers" in argv
        and (of_rank is None or str(of_rank) in argv)
        and Path(f"/proc/{pid}/cwd").resolve() == folder.resolve()
    ]


def _processes() -> Iterator[tuple[int, list[str], list[str]]]:
    """Process id, arguments and environment of every process that can be looked at."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                argv = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                environ = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            yield int(entry.name), argv, environ


def wait_for(condition: Callable[[], Any], seconds: float = 240) -> Any:
    """The first true value of the condition. Raises AssertionError after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s")
