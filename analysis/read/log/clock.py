"""Whether the times of a log can be those of one clock that nobody set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.base.values import seconds_of
from analysis.read.damage import CLOCK_BACK, CLOCK_GAP, CLOCK_SECONDS, GAP_SECONDS
from analysis.read.log.values import StepsLine

# Events that a rank writes while a block runs, or after it but before the block's own event.
WITHIN_BLOCKS = frozenset({"first_step", "fault", "device"})


def clock_damage(before: float, outside: float, t: float, event: Mapping[str, Any]) -> str | None:
    """Return the kind of damage between the times of two events, or None.

    The wall clock must advance at least by a block's monotonic duration.

    Args:
        before, t: unix seconds of the two events.
        outside: of the last event before `event` that is none of WITHIN_BLOCKS.
        event: the later one.
    """
    moved, taken = t - before, seconds_of(event, "seconds") if event["ev"] == "steps" else None
    if moved < -CLOCK_SECONDS or t - outside < 0.95 * (taken or 0.0) - CLOCK_SECONDS:
        return CLOCK_BACK
    if moved > GAP_SECONDS and moved > GAP_SECONDS + _accounted(event):
        return CLOCK_GAP
    return None


def ticks(t: float, lines: Sequence[StepsLine]) -> bool:
    """Return whether none of the lines has such damage, quickly. t: unix seconds of the event before the lines."""
    for line in lines:
        if not 0.95 * line.seconds - CLOCK_SECONDS <= line.t - t <= GAP_SECONDS:
            return False
        t = line.t
    return True


def _accounted(event: Mapping[str, Any]) -> float:
    """Return the seconds that an event accounts for."""
    return (seconds_of(event, "seconds") or 0.0) + (seconds_of(event, "left_out_seconds") or 0.0)
