"""name=value on the command lines of `python -m analysis <command>`, and the numbers among the values."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from analysis.base.errors import StudyError

MOST_GPUS = 10_000_000


def settings_of(texts: Sequence[str], known: Collection[str]) -> dict[str, str]:
    """The values by their names. StudyError for what is not name=value, not known, or given twice."""
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
    """The value of a setting that counts something. Raises StudyError."""
    if not text.strip().isdecimal() or not 0 < int(text) <= MOST_GPUS:
        raise StudyError(f"{name}={text}: give whole numbers from 1 to {MOST_GPUS:,}")
    return int(text)


def positive(name: str, text: str | None) -> float | None:
    """The value of a setting that measures something; None where it is not given. Raises StudyError."""
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise StudyError(f"{name}={text}: give a number above 0")
    return value
