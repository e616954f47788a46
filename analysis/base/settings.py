"""Parses name=value arguments of `python -m analysis <command>`."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from analysis.base.errors import StudyError

MOST_GPUS = 10_000_000


def settings_of(texts: Sequence[str], known: Collection[str]) -> dict[str, str]:
    """Return the values by name. Raises StudyError if one is not name=value, unknown, or given twice."""
    values: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name not in known:
            raise StudyError(f"{text!r} is no setting; there are {', '.join(f'{each}=' for each in known)}")
        if name in values:
            raise StudyError(f"{name}= is given twice; give one value")
        values[name] = value
    return values


def whole(name: str, text: str) -> int:
    """Parse a count. Raises StudyError."""
    if not text.strip().isdecimal() or not 0 < int(text) <= MOST_GPUS:
        raise StudyError(f"{name}={text}: give whole numbers from 1 to {MOST_GPUS:,}")
    return int(text)


def positive(name: str, text: str | None) -> float | None:
    """Parse a positive number; None if not given. Raises StudyError."""
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise StudyError(f"{name}={text}: give a number above 0")
    return value
