"""Runs ranks as forks of a process that has imported the framework but not used it yet (Python 3.8 syntax)."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from typing import Any


def run(function: Callable[..., None], ranks: Sequence[tuple[Any, ...]], seconds: float = 300) -> list[int]:
    """Call the function in a process for each rank, with its arguments. Return the exit codes; negative if it was
    ended, also after so many seconds."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=function, args=arguments) for arguments in ranks]
    deadline = time.monotonic() + seconds
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
    finally:
        for process in processes:
            process.kill()
            process.join()
    return [int(process.exitcode or 0) for process in processes]
