"""name=value on the command lines of `python -m analysis <command>`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from analysis.errors import StudyError


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
