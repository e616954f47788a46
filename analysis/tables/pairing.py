"""Matches points that did the same work."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol, TypeVar

from harness.core.spec import EMULATED


@lru_cache(maxsize=4096)
def spec_of(key: str) -> Mapping[str, Any]:
    """Return the spec's fields from the key of a series or point."""
    spec: Mapping[str, Any] = json.loads(key)
    return spec


@lru_cache(maxsize=4096)
def without(key: str, *fields: str) -> str:
    """Return the key without these fields, such as optimizer or optimizer.lr; equal for all that differ in nothing
    else."""
    kept = {name: value for name, value in spec_of(key).items() if name not in fields}
    for field in fields:
        *parents, last = field.split(".")
        inner = kept
        for name in parents:
            inner[name] = inner = dict(inner[name]) if isinstance(inner.get(name), dict) else {}
        inner.pop(last, None)
    return json.dumps(kept, sort_keys=True)


def flat(spec: Mapping[str, Any], parent: str = "") -> dict[str, Any]:
    """Return the fields of a spec by their dotted names, such as optimizer.lr."""
    found: dict[str, Any] = {}
    for name, value in spec.items():
        found |= flat(value, f"{parent}{name}.") if isinstance(value, dict) and value else {f"{parent}{name}": value}
    return found


def only(key: str, *fields: str) -> str:
    """Return only these fields of the key of a series or point."""
    return json.dumps([spec_of(key).get(name) for name in fields], sort_keys=True)


class Work(Protocol):
    """A point, or a stand-in for one."""

    @property
    def series(self) -> str: ...

    @property
    def framework(self) -> str: ...


P = TypeVar("P", bound=Work)


def pairing(
    points: Iterable[P],
    without_fields: Collection[str] = (),
    where: Sequence[str] = (),
    also: Callable[[P], Hashable] = lambda point: None,
    fields: Collection[str] | None = None,
) -> dict[Hashable, list[P]]:
    """Group points that did the same work, by that work, in the order of the points.

    Emulated points wait instead of computing; they do no work that another framework does.

    Args:
        without_fields: fields of the spec in which points of a group may differ.
        where: attributes that must be equal too.
        also: further key that must be equal.
        fields: compare only these fields of the spec, instead of all but without_fields.
    """
    groups: dict[Hashable, list[P]] = defaultdict(list)
    for point in points:
        shared = without(point.series, *without_fields) if fields is None else only(point.series, *fields)
        own = (getattr(point, name) for name in where)
        groups[(shared, point.framework == EMULATED, *own, also(point))].append(point)
    return dict(groups)
