"""Dataclasses as plain JSON, and back. Standard library only, no syntax newer than Python 3.8: see
harness/core/spec.py."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import typing
from pathlib import Path
from typing import Any, Dict, Mapping, Type, TypeVar

T = TypeVar("T")
# Marks the fields, of RunSpec and of what it consists of, that came after the first measurements: at their defaults
# they are left out of a run's id.
LATER = {"later": True}


def to_plain(value: Any) -> Any:
    """A dataclass as the dicts, lists and scalars that JSON knows."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(v) for v in value]
    return value


def determining(value: Any) -> Any:
    """`to_plain` without the fields that came later and are at their default."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return to_plain(value)
    fields = {f: getattr(value, f.name) for f in dataclasses.fields(value)}
    return {f.name: determining(v) for f, v in fields.items() if not (f.metadata.get("later") and v == _default(f))}


def _default(f: Any) -> Any:
    return f.default if f.default_factory is dataclasses.MISSING else f.default_factory()


def from_plain(cls: Type[T], plain: Mapping[str, Any]) -> T:
    """The dataclass `cls` from `to_plain`'s dicts; unknown keys are passed over, so that old readers read new files.

    Raises ValueError where a field without default is missing or nested data has the wrong form.
    """
    if not isinstance(plain, Mapping):
        raise ValueError(f"{cls.__name__}: expected an object, got {type(plain).__name__}")
    hints = _hints(typing.cast(Any, cls))
    values = {}
    for f in dataclasses.fields(cls):  # type: ignore[arg-type]
        if f.name not in plain:
            continue
        value, hint = plain[f.name], hints[f.name]
        if dataclasses.is_dataclass(hint):
            value = from_plain(hint, value)  # type: ignore[arg-type]
        elif isinstance(value, list):
            value = tuple(value)
        values[f.name] = value
    try:
        return cls(**values)
    except TypeError as error:
        raise ValueError(f"{cls.__name__}: {error}") from None


@functools.lru_cache(maxsize=None)
def _hints(cls: Any) -> Dict[str, Any]:
    return typing.get_type_hints(cls)


def write_json(path: Path, document: Any) -> None:
    """Writes JSON to a temporary name and renames it: no reader ever sees half a file."""
    temporary = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}.tmp")
    try:
        temporary.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError:
        # A full disk: half a file would only take more of it.
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
