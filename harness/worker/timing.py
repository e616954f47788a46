"""Seconds of steps, between two fences: THE way in which steps are timed."""

from __future__ import annotations

import time
from typing import Callable

from harness.worker.adapter import Adapter


def timed(adapter: Adapter, step: Callable[[], None], n: int) -> float:
    """Seconds of `n` steps on this rank's monotonic clock, between two fences."""
    adapter.fence()
    start = time.perf_counter()
    for _ in range(n):
        step()
    adapter.fence()
    return time.perf_counter() - start
