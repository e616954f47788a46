"""Which points of a study are to be compared with which others, before their work is
(analysis/measures/equal_work.py)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from analysis.base.constants import PLAIN
from analysis.base.text import listed
from analysis.read.row import Run
from analysis.tables.pairing import spec_of
from analysis.tables.series import name_series, natural_order
from harness.core.serialization import from_plain
from harness.core.spec import DALI, EMULATED, RunSpec
from models import catalog

REFERENCE_FRAMEWORK = "pytorch"
STRATEGY_ORDER = (PLAIN, "allreduce")  # the nearest to the framework itself first, the others by name

# What two points have to share to be compared at all, and what else, to be compared in full: their networks, and their
# steps.
FAMILY = ("model", "dataset", "cluster", "device")
NETWORK_SETTINGS = {"dataset": "settings of the data set", "optimizer": "optimiser"}
STEP_SETTINGS = {"precision": "precision", "gpus": "number of GPUs", "global_batch": "global batch"}
SETTINGS = {**NETWORK_SETTINGS, **STEP_SETTINGS}


@dataclass(frozen=True)
class Point:
    """A point of the study. key: as its runs name it. row: one of its runs. runs: the completed ones; also none."""

    key: str
    row: Run
    detail: str
    runs: tuple[Run, ...]

    def __str__(self) -> str:
        return f"{self.framework} {self.strategy}"

    @property
    def framework(self) -> str:
        return str(self.row["framework"])

    @property
    def strategy(self) -> str:
        return str(self.row["strategy"])

    @cached_property
    def settings(self) -> dict[str, str]:
        spec = spec_of(self.key)
        return {name: json.dumps(spec[name], sort_keys=True) for name in SETTINGS}

    @cached_property
    def spec(self) -> RunSpec:
        """Without seed and repeat."""
        return from_plain(RunSpec, {**spec_of(self.key), "seed": 0, "repeat": 0})

    @property
    def shares(self) -> int | None:
        """Of a data set in shards, how many parts of it are read side by side; None where all readers see one order."""
        return self.spec.replicas if self.spec.dataset.reader == "shards" else None

    @property
    def decoded_by_dali(self) -> bool:
        """Whether its images have other pixel values than with the other input pipelines."""
        return self.spec.data.pipeline == DALI

    @cached_property
    def normalised(self) -> int | None:
        """Samples that BatchNorm takes its statistics from, in training; None in a network without it."""
        spec = self.spec
        data = spec.dataset
        try:
            layers = catalog.network(spec.model).layers(data.channels, data.classes, data.size)
        except ValueError:  # of another version of this program
            return spec.microbatch
        return spec.microbatch if any(isinstance(layer, catalog.BatchNorm) for layer in catalog.flat(layers)) else None

    @property
    def order(self) -> tuple[Any, ...]:
        """The first of several points is what the others are compared with."""
        place = STRATEGY_ORDER.index(self.strategy) if self.strategy in STRATEGY_ORDER else len(STRATEGY_ORDER)
        return (
            self.framework != REFERENCE_FRAMEWORK,
            self.framework,
            self.decoded_by_dali,
            place,
            self.strategy,
            self.key,
        )

    def unlike(self, other: Point) -> list[str]:
        """The settings in which the two differ."""
        return [name for name in SETTINGS if self.settings[name] != other.settings[name]]


@dataclass(frozen=True)
class Pair:
    """A completed point with its reference: itself, where it is that of others; None, where there is none.

    why_not: why there is none with all the same settings.
    """

    point: Point
    reference: Point | None
    why_not: str | None = None


def pairs_of(runs: Iterable[Run]) -> Iterator[Pair]:
    """The points that are to be compared: where more than one framework or strategy was asked for with the same
    settings, and, in a study of several frameworks, those whose settings no other one was asked for with.
    """
    for family in _families(runs):
        alike: dict[tuple[Any, ...], list[Point]] = defaultdict(list)
        for point in family:
            alike[(point.row["gpus"], point.row["global_batch"], *point.settings.values())].append(point)
        several_frameworks = len({point.framework for point in family}) > 1
        for key in sorted(alike):
            completed = _completed(alike[key])
            if len({str(point) for point in completed}) > 1:
                yield from _with_equal_settings(completed, family)
            elif several_frameworks:
                yield from (_with_nearest(point, family) for point in completed)
            elif len({str(point) for point in alike[key]}) > 1:
                yield from (Pair(point, None, "nothing else has completed with these settings") for point in completed)


def in_words(settings: Sequence[str]) -> str:
    """'a different number of GPUs'."""
    if "gpus" in settings:  # in weak scaling the global batch follows
        settings = [name for name in settings if name != "global_batch"]
    return f"a different {listed([SETTINGS[name] for name in settings], 'and')}"


def _families(runs: Iterable[Run]) -> list[list[Point]]:
    """The points that have a model, a data set and a machine in common."""
    by_point: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run.point is not None:
            by_point[run.point].append(run)
    names = name_series({group[0]["series"]: group[0] for group in by_point.values()})
    families: dict[tuple[str, ...], list[Point]] = defaultdict(list)
    for key, group in by_point.items():
        completed = sorted((run for run in group if run.completed), key=lambda run: (run.seed, run.repeat))
        _, detail = names[group[0]["series"]]
        # What waits instead of computing is compared with nothing that computes.
        emulated = str(group[0]["framework"] == EMULATED)
        families[(*(group[0][name] for name in FAMILY), emulated)].append(
            Point(key, group[0], detail, tuple(completed))
        )
    return [families[key] for key in sorted(families, key=lambda key: [natural_order(part) for part in key])]


def _with_equal_settings(points: Sequence[Point], family: Sequence[Point]) -> Iterator[Pair]:
    """The framework of the first is the reference of the others: its point of the same strategy, or else the first; of
    those with the same pixels, where there is another."""
    first = points[0]
    for point in points:
        own = [p for p in points if p.framework == first.framework and p.decoded_by_dali == point.decoded_by_dali]
        base = own[0] if own and own[0] is not point else first
        same = (other for other in own if other.strategy == point.strategy)
        if point is first and point.framework != _completed(family)[0].framework:
            yield _with_nearest(point, family)
        else:
            yield Pair(point, base if point.framework == first.framework else next(same, base))


def _with_nearest(point: Point, family: Sequence[Point]) -> Pair:
    """The step of such a point can be compared with no other, but its network can: with that of the reference
    framework, in the point that has the most settings in common.
    """
    completed = _completed(family)
    mine = point.framework == completed[0].framework
    others = [other for other in completed if (other.framework == completed[0].framework) != mine]
    if not others:
        return Pair(point, None, "no other framework has completed runs")
    nearest = min(others, key=lambda other: (len(point.unlike(other)), other.order))
    why = f"{nearest.framework} ran with {in_words(point.unlike(nearest))}"
    return Pair(point, None if mine else nearest, why)


def _completed(points: Sequence[Point]) -> list[Point]:
    """Those with completed runs; the first is of the reference framework."""
    return sorted((point for point in points if point.runs), key=lambda point: point.order)
