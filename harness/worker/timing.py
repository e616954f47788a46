"""Seconds of steps, between two fences: THE way in which steps are timed."""

from __future__ import annotations

import time
from typing import Callable, NamedTuple

from harness.worker.adapter import Adapter


class Timing(NamedTuple):
    """Seconds of a block of steps on this rank's monotonic clock.

    seconds: from the opening fence to the closing one. issue_seconds: until the host had issued the last step, before
    the closing fence. first_issue_seconds: until it had issued the first one, when the device's queue was empty. A GPU
    takes about a thousand launches in advance and then holds the host up, so that a long block's issue_seconds approach
    its seconds whoever is slower; the first step's do not.
    """

    seconds: float
    issue_seconds: float
    first_issue_seconds: float


def timed(adapter: Adapter, step: Callable[[], None], n: int) -> Timing:
    """Times `n` steps, at least one, between two fences."""
    adapter.fence()
    start = time.perf_counter()
    step()
    first = time.perf_counter()
    for _ in range(n - 1):
        step()
    issued = time.perf_counter()
    adapter.fence()
    return Timing(time.perf_counter() - start, issued - start, first - start)
