"""Time steps between two fences: the only way in which the harness times them."""

from __future__ import annotations

import time
from typing import Callable, NamedTuple

from harness.worker.adapter import Adapter


class Timing(NamedTuple):
    """Seconds of a block of steps on this rank's monotonic clock.

    seconds: from the opening to the closing fence. issue_seconds: until the host had issued the last step.
    first_issue_seconds: until it had issued the first, with the device's queue empty. A GPU queues about a thousand
    launches and then blocks the host, so that issue_seconds of a long block approach its seconds in any case; those of
    the first step do not.
    """

    seconds: float
    issue_seconds: float
    first_issue_seconds: float


def timed(adapter: Adapter, step: Callable[[], None], n: int) -> Timing:
    """Time `n` >= 1 steps between two fences."""
    adapter.fence()
    start = time.perf_counter()
    step()
    first = time.perf_counter()
    for _ in range(n - 1):
        step()
    issued = time.perf_counter()
    adapter.fence()
    return Timing(time.perf_counter() - start, issued - start, first - start)
