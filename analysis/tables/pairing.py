"""Which points did the same work but for something: the one way in which points are matched."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from analysis.tables.point import Point
from harness.core.spec import EMULATED


@lru_cache(maxsize=4096)
def spec_of(key: str) -> Mapping[str, Any]:
    """The fields that the points of a series, or the runs of a point, share. key: of the series or point."""
    spec: Mapping[str, Any] = json.loads(key)
    return spec


@lru_cache(maxsize=4096)
def without(key: str, *fields: str) -> str:
    """The key of a series or point without these fields: equal for all that differ in nothing else."""
    return json.dumps({name: value for name, value in spec_of(key).items() if name not in fields}, sort_keys=True)


def pairing(
    points: Iterable[Point],
    without_fields: Collection[str],
    where: Sequence[str] = (),
    also: Callable[[Point], Hashable] = lambda point: None,
) -> dict[Hashable, list[Point]]:
    """The points that did the same work, by that work; in the order of the points.

    without_fields: of the spec, those in which they may differ. where: columns that are equal too. also: what else is.
    What is emulated waits instead of computing, and does no work that another framework does.
    """
    groups: dict[Hashable, list[Point]] = defaultdict(list)
    for point in points:
        shared = (without(point.series, *without_fields), point.framework == EMULATED)
        groups[(*shared, *(getattr(point, name) for name in where), also(point))].append(point)
    return dict(groups)
