"""Wait until a moment on the monotonic clock, as exactly as sleeping allows.

A busy loop would be exact but take a core from other ranks on an oversubscribed machine. A sleep overshoots by about
the same time each time (Linux: timer slack of 50 us, and waking up), which is measured first and subtracted. Moments
are absolute, so that errors do not add up.
"""

from __future__ import annotations

import statistics
import time
from typing import Dict

CALIBRATION_SLEEPS = 40
CALIBRATION_SECONDS = 1e-3

now = time.perf_counter


class Waiting:
    """overshoot: median seconds by which CALIBRATION_SLEEPS sleeps end late. error: median and largest deviation in
    seconds after correcting for it."""

    def __init__(self) -> None:
        self.overshoot = 0.0
        self.overshoot = max(0.0, statistics.median(self._late() for _ in range(CALIBRATION_SLEEPS)))
        distances = [abs(self._late()) for _ in range(CALIBRATION_SLEEPS)]
        self.error = (statistics.median(distances), max(distances))

    def until(self, moment: float) -> None:
        """Return at `moment` of `now()`, or immediately if that has passed."""
        left = moment - now() - self.overshoot
        if left > 0:
            time.sleep(left)

    def facts(self) -> Dict[str, float]:
        median, largest = self.error
        return {"overshoot_seconds": self.overshoot, "error_seconds": median, "largest_error_seconds": largest}

    def _late(self) -> float:
        """Return the seconds by which one wait ends late."""
        moment = now() + CALIBRATION_SECONDS
        self.until(moment)
        return now() - moment
