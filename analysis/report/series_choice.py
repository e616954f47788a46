"""Which series of a study are shown, in which order, under which labels and in which colours, as the user asks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from analysis.base.errors import StudyError
from analysis.base.text import printable
from analysis.report.series_names import short_names
from analysis.tables.pairing import spec_of
from analysis.tables.point import Point, Shown
from analysis.tables.series import Series, series_of

LABELS = "labels.yaml"
KEYS = ("series", "label", "colour")
_COLOUR = re.compile(r"#[0-9A-Fa-f]{6}")
_MOST_NAMED = 12
_EXAMPLE = "- {series: pytorch allreduce, label: Ours, colour: '#d55e00'}"


@dataclass(frozen=True)
class Choice:
    """words: shows only series that match one of these; empty: all. labels: (words, label, colour), in order."""

    words: tuple[str, ...] = ()
    labels: tuple[tuple[str, str | None, str | None], ...] = ()


def choice_of(study: Path, labels: Path | None, words: Sequence[str]) -> Choice | None:
    """Return what the options ask for; None for nothing. Raises StudyError.

    Args:
        study: the study's folder, whose labels.yaml is used if no other file is given.
        labels: file of labels.
        words: as in `Choice`.
    """
    path = study / LABELS if labels is None and (study / LABELS).is_file() else labels
    if path is None and not words:
        return None
    return Choice(tuple(words), () if path is None else read_labels(path))


def read_labels(path: Path) -> tuple[tuple[str, str | None, str | None], ...]:
    """Read a list of entries with the keys `KEYS`. Raises StudyError, naming the file and what is valid."""
    import yaml

    try:
        entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StudyError(f"{path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise StudyError(f"{path} is not YAML; give a list of lines such as {_EXAMPLE}") from None
    if not isinstance(entries, list) or not entries:
        raise StudyError(f"{path} holds no list of series; give lines such as {_EXAMPLE}")
    return tuple(_entry(path, number, entry) for number, entry in enumerate(entries, start=1))


def _entry(path: Path, number: int, entry: Any) -> tuple[str, str | None, str | None]:
    where = f"{path}, entry {number}"
    if not isinstance(entry, dict) or not isinstance(entry.get("series"), str) or not entry["series"].strip():
        raise StudyError(f"{where}: series is missing; give words of a series' name, as in {_EXAMPLE}")
    if unknown := [str(key) for key in entry if key not in KEYS]:
        raise StudyError(f"{where}: there is no key '{unknown[0]}'; valid: {', '.join(KEYS)}")
    label, colour = entry.get("label"), entry.get("colour")
    if label is not None and not (isinstance(label, str) and label.strip()):
        raise StudyError(f"{where}: label={label!r}: give text")
    if colour is not None and not (isinstance(colour, str) and _COLOUR.fullmatch(colour)):
        raise StudyError(f"{where}: colour={colour!r}: give six hexadecimal digits in quotes, such as '#d55e00'")
    return entry["series"].strip(), None if label is None else printable(label.strip()), colour


def chosen(points: Sequence[Point], choice: Choice) -> list[Point]:
    """Return the points of the chosen series, those with a place first.

    A framework alone stays, as the baseline of what is shown.

    Raises:
        StudyError: words match no series, or a label would name several.
    """
    series = series_of(points)
    names = short_names(series)
    for words in (*choice.words, *(words for words, _, _ in choice.labels)):
        if not _matching(words, series, names):
            known = "; ".join(list(dict.fromkeys(names.values()))[:_MOST_NAMED])
            raise StudyError(f"no series has '{words}' in its name or configuration; there are: {known}")
    shown: dict[str, Shown] = {}
    for place, (words, label, colour) in enumerate(choice.labels):
        matching = [one for one in _matching(words, series, names) if one.key not in shown]
        if label is not None and len(matching) > 1:
            found = "; ".join(names[one.key] for one in matching[:_MOST_NAMED])
            raise StudyError(f"{LABELS}: '{words}' is in the names of several series: {found}; give more words of one")
        shown |= {one.key: Shown(place, label, colour) for one in matching}
    kept = {one.key for words in choice.words for one in _matching(words, series, names)}
    kept |= {one.key for one in series if one.alone or not choice.words}
    ordered = sorted(
        (one for one in series if one.key in kept),
        key=lambda one: shown[one.key].place if one.key in shown else len(choice.labels),
    )
    return [_as_shown(point, shown.get(one.key)) for one in ordered for point in one.points]


def _as_shown(point: Point, shown: Shown | None) -> Point:
    if shown is None or not shown.label:
        return replace(point, shown=shown)
    return replace(point, shown=shown, label=shown.label, detail="")


def _matching(words: str, series: Iterable[Series], names: dict[str, str]) -> list[Series]:
    """Return the series that are called so, else those that the words are in the names of."""
    exact = [one for one in series if names[one.key] == words]
    return exact or [one for one in series if named_by(words, names[one.key], one.key)]


def named_by(words: str, name: str, key: str) -> bool:
    """Return whether the words are in the name of a series, or in its framework and strategy as they are configured:
    'pytorch allreduce' for PyTorch DDP. key: of the series."""
    spec = spec_of(key)
    configured = f"{spec.get('framework', '')} {spec.get('strategy', '')}"
    return any(words.lower() in text.lower() for text in (name, configured))
