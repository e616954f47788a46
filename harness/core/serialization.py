"""Converts dataclasses to plain JSON values and back. Standard library only, Python 3.8 syntax."""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import functools
import json
import os
import typing
from pathlib import Path
from typing import Any, List, Mapping, Tuple, Type, TypeVar

T = TypeVar("T")
_SCALARS = (str, int, float, type(None))
# Marks fields added after the first measurements: at their default they are excluded from a run's id.
LATER = {"later": True}


def to_plain(value: Any) -> Any:
    """Convert a dataclass to dicts, lists and scalars."""
    if isinstance(value, _SCALARS):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: to_plain(getattr(value, name)) for name, _, _ in _fields(type(value))}
    if isinstance(value, collections.abc.Mapping):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(v) for v in value]
    return value


def determining(value: Any) -> Any:
    """Like `to_plain`, without LATER fields that have their default value."""
    if isinstance(value, _SCALARS):
        return value
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return to_plain(value)
    found = {}
    for name, later in _later(type(value)):
        of_it = getattr(value, name)
        if later is None or of_it != _default(later):
            found[name] = determining(of_it)
    return found


@functools.lru_cache(maxsize=None)
def _later(cls: Type[Any]) -> List[Tuple[str, Any]]:
    """Names of a dataclass's fields, each with the field if it is a LATER one, else None."""
    return [(f.name, f if f.metadata.get("later") else None) for f in dataclasses.fields(cls)]


def _default(f: Any) -> Any:
    return f.default if f.default_factory is dataclasses.MISSING else f.default_factory()


def from_plain(cls: Type[T], plain: Mapping[str, Any]) -> T:
    """Build the dataclass `cls` from the dicts of `to_plain`. Unknown keys are ignored, for files of newer versions.

    Raises ValueError if a field without default is missing or nested data is malformed.
    """
    if not isinstance(plain, collections.abc.Mapping):
        raise ValueError(f"{cls.__name__}: expected an object, got {type(plain).__name__}")
    values = {}
    for name, nested, optional in _fields(typing.cast(Any, cls)):
        if name not in plain:
            continue
        value = plain[name]
        if nested is not None and not (optional and value is None):
            value = from_plain(nested, value)
        elif isinstance(value, list):
            value = tuple(value)
        values[name] = value
    try:
        return cls(**values)
    except TypeError as error:
        raise ValueError(f"{cls.__name__}: {error}") from None


@functools.lru_cache(maxsize=None)
def _fields(cls: Any) -> List[Tuple[str, Any, bool]]:
    """Return of each field of a dataclass its name, the dataclass that it holds if any, and whether it may be None."""
    hints, found = typing.get_type_hints(cls), []
    for f in dataclasses.fields(cls):
        hint = hints[f.name]
        optional = next(filter(dataclasses.is_dataclass, typing.get_args(hint)), None)  # of Optional[cls]
        nested = hint if dataclasses.is_dataclass(hint) else optional
        found.append((f.name, nested, optional is not None))
    return found


def json_text(document: Any) -> str:
    """Return the text of a JSON file."""
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def write_json(path: Path, document: Any, private: bool = False) -> None:
    """Write JSON to a temporary file and rename it, so that readers never see a partial file.

    private: readable for this user only.
    """
    temporary = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8", opener=_private if private else None) as file:
            file.write(json_text(document))
        temporary.replace(path)
    except OSError:
        # The disk may be full: remove the partial file.
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
