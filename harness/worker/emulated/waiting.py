"""Waiting until a moment on the monotonic clock, as exactly as sleeping can.

A busy loop would be exact, and would take a core from the neighbours, which on an oversubscribed machine are the other
ranks. A sleep comes back late by about as much each time (Linux: timer slack of 50 us and waking up). So that is
measured first, and each sleep is as much shorter. Moments are absolute: what one wait is late, the next one is not.
"""

from __future__ import annotations

import statistics
import time
from typing import Dict

CALIBRATION_SLEEPS = 40
CALIBRATION_SECONDS = 1e-3

now = time.perf_counter


class Waiting:
    """overshoot: seconds by which a sleep comes back late, the median of CALIBRATION_SLEEPS. error: how exact waiting
    is with that known, in seconds: the median distance from the moment that was asked for, and the largest."""

    def __init__(self) -> None:
        self.overshoot = 0.0
        self.overshoot = max(0.0, statistics.median(self._late() for _ in range(CALIBRATION_SLEEPS)))
        distances = [abs(self._late()) for _ in range(CALIBRATION_SLEEPS)]
        self.error = (statistics.median(distances), max(distances))

    def until(self, moment: float) -> None:
        """Returns at `moment` of `now()`; at once where that is over."""
        left = moment - now() - self.overshoot
        if left > 0:
            time.sleep(left)

    def facts(self) -> Dict[str, float]:
        median, largest = self.error
        return {"overshoot_seconds": self.overshoot, "error_seconds": median, "largest_error_seconds": largest}

    def _late(self) -> float:
        """Seconds by which one wait comes back late."""
        moment = now() + CALIBRATION_SECONDS
        self.until(moment)
        return now() - moment
