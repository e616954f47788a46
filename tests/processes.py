"""Looking at real worker processes, and waiting for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def workers(run_id_part: str) -> dict[int, int]:
    """rank -> process id of the workers on this machine (its virtual nodes too) whose command line has the text."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                argv = (entry / "cmdline").read_bytes().decode().split("\0")
                environ = (entry / "environ").read_bytes().decode().split("\0")
            except OSError:
                continue
            if "harness.worker" in argv and any(run_id_part in word for word in argv):
                rank = next(word[5:] for word in environ if word.startswith("RANK="))
                found[int(rank)] = int(entry.name)
    return found


def wait_for(condition: Callable[[], Any], seconds: float = 60) -> Any:
    """The first true value of the condition. Raises AssertionError after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s")
