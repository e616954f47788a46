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
from analysis.tables.pairing import pairing, spec_of
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
SERIES_SETTINGS = tuple(name for name in SETTINGS if name not in ("gpus", "global_batch"))


@dataclass(frozen=True)
class Candidate:
    """A point before it is known whether its work is that of others."""

    key: str  # as its runs name it
    row: Run  # one of its runs
    detail: str  # of its series
    runs: tuple[Run, ...]  # the completed ones; may be none

    def __str__(self) -> str:
        return f"{self.framework} {self.strategy}"

    @property
    def series(self) -> str:
        return str(self.row["series"])

    @property
    def framework(self) -> str:
        return str(self.row["framework"])

    @property
    def strategy(self) -> str:
        return str(self.row["strategy"])

    @property
    def size(self) -> tuple[int, int]:
        """GPUs and global batch."""
        return self.row["gpus"], self.row["global_batch"]

    @property
    def family_order(self) -> tuple[Any, ...]:
        return [natural_order(self.row[name]) for name in FAMILY], self.framework == EMULATED

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

    def unlike(self, other: Candidate) -> list[str]:
        """The settings in which the two differ."""
        return [name for name in SETTINGS if self.settings[name] != other.settings[name]]


@dataclass(frozen=True)
class Pair:
    """A completed point with its reference: itself, where it is that of others; None, where there is none.

    why_not: why there is none with all the same settings.
    """

    point: Candidate
    reference: Candidate | None
    why_not: str | None = None


def pairs_of(runs: Iterable[Run]) -> Iterator[Pair]:
    """The points that are to be compared: where more than one framework or strategy was asked for with the same
    settings, and, in a study of several frameworks, those whose settings no other one was asked for with.
    """
    for family in _families(runs):
        several_frameworks = len({point.framework for point in family}) > 1
        alike = pairing(family, fields=SERIES_SETTINGS, also=lambda point: point.size)
        for points in sorted(alike.values(), key=lambda points: (points[0].size, *points[0].settings.values())):
            completed = _completed(points)
            if len({str(point) for point in completed}) > 1:
                yield from _with_equal_settings(completed, family)
            elif several_frameworks:
                yield from (_with_nearest(point, family) for point in completed)
            elif len({str(point) for point in points}) > 1:
                yield from (Pair(point, None, "nothing else has completed with these settings") for point in completed)


def in_words(settings: Sequence[str]) -> str:
    """'a different number of GPUs'."""
    if "gpus" in settings:  # in weak scaling the global batch follows
        settings = [name for name in settings if name != "global_batch"]
    return f"a different {listed([SETTINGS[name] for name in settings], 'and')}"


def _families(runs: Iterable[Run]) -> list[list[Candidate]]:
    """The points that have a model, a data set and a machine in common."""
    by_point: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run.point is not None:
            by_point[run.point].append(run)
    names = name_series({group[0]["series"]: group[0] for group in by_point.values()})
    found = []
    for key, group in by_point.items():
        completed = sorted((run for run in group if run.completed), key=lambda run: (run.seed, run.repeat))
        _, detail = names[group[0]["series"]]
        found.append(Candidate(key, group[0], detail, tuple(completed)))
    families = pairing(found, fields=(), also=lambda point: tuple(point.row[name] for name in FAMILY)).values()
    return sorted(families, key=lambda family: family[0].family_order)


def _with_equal_settings(points: Sequence[Candidate], family: Sequence[Candidate]) -> Iterator[Pair]:
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


def _with_nearest(point: Candidate, family: Sequence[Candidate]) -> Pair:
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


def _completed(points: Sequence[Candidate]) -> list[Candidate]:
    """Those with completed runs; the first is of the reference framework."""
    return sorted((point for point in points if point.runs), key=lambda point: point.order)
