"""Matching points that did the same work."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol, TypeVar

from harness.core.spec import EMULATED


@lru_cache(maxsize=4096)
def spec_of(key: str) -> Mapping[str, Any]:
    """The fields of the spec behind the key of a series or point."""
    spec: Mapping[str, Any] = json.loads(key)
    return spec


@lru_cache(maxsize=4096)
def without(key: str, *fields: str) -> str:
    """The key without these fields; equal for all series or points that differ in nothing else."""
    return json.dumps({name: value for name, value in spec_of(key).items() if name not in fields}, sort_keys=True)


def only(key: str, *fields: str) -> str:
    """These fields of the key of a series or point."""
    return json.dumps([spec_of(key)[name] for name in fields], sort_keys=True)


class Work(Protocol):
    """A point, or what stands for one."""

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
    """Groups of points that did the same work, by that work, in the order of the points.

    Emulated points wait instead of computing; they do no work that another framework does.

    Args:
        without_fields: of the spec, in which they may differ.
        where: attributes that are equal too.
        also: what else is equal.
        fields: of the spec, if only these are equal and not all but without_fields.
    """
    groups: dict[Hashable, list[P]] = defaultdict(list)
    for point in points:
        shared = without(point.series, *without_fields) if fields is None else only(point.series, *fields)
        own = (getattr(point, name) for name in where)
        groups[(shared, point.framework == EMULATED, *own, also(point))].append(point)
    return dict(groups)
