"""Chooses the reference of each point for the check of equal work (analysis/measures/equal_work.py)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from analysis.base.constants import OWN_TRAININGS, PLAIN
from analysis.base.text import listed
from analysis.read.row import Run
from analysis.tables.names import training_name
from analysis.tables.pairing import pairing, spec_of
from analysis.tables.series import name_series, natural_order
from harness.core.serialization import from_plain
from harness.core.spec import DALI, EMULATED, RunSpec
from models import catalog

REFERENCE_FRAMEWORK = "pytorch"
STRATEGY_ORDER = (PLAIN, "allreduce")  # closest to the framework itself first, then by name

# What two points must share to be compared at all, to compare their networks, and to compare their steps.
FAMILY = ("model", "dataset", "cluster", "device")
NETWORK_SETTINGS = {"dataset": "settings of the data set", "optimizer": "optimiser"}
STEP_SETTINGS = {"precision": "precision", "gpus": "number of GPUs", "global_batch": "global batch"}
SETTINGS = {**NETWORK_SETTINGS, **STEP_SETTINGS}
SERIES_SETTINGS = tuple(name for name in SETTINGS if name not in ("gpus", "global_batch"))


@dataclass(frozen=True)
class Candidate:
    """A point whose work may be compared with that of others."""

    key: str  # as its runs name it
    row: Run  # one of its runs
    detail: str  # of its series
    runs: tuple[Run, ...]  # the completed ones; may be none

    def __str__(self) -> str:
        return training_name(self.framework, self.strategy)

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
        """The spec without seed and repeat."""
        return from_plain(RunSpec, {**spec_of(self.key), "seed": 0, "repeat": 0})

    @property
    def shares(self) -> int | None:
        """Number of parts of a sharded data set read in parallel; None if all readers see the same order."""
        return self.spec.replicas if self.spec.dataset.reader == "shards" else None

    @property
    def decoded_by_dali(self) -> bool:
        """Whether NVIDIA DALI decodes its images, which gives slightly different pixel values."""
        return self.spec.data.pipeline == DALI

    @cached_property
    def normalised(self) -> int | None:
        """Samples in the training statistics of BatchNorm; None for networks without it."""
        spec = self.spec
        data = spec.dataset
        try:
            layers = catalog.network(spec.model).layers(data.channels, data.classes, data.size)
        except ValueError:  # from another version of this program
            return spec.microbatch
        return spec.microbatch if any(isinstance(layer, catalog.BatchNorm) for layer in catalog.flat(layers)) else None

    @property
    def order(self) -> tuple[Any, ...]:
        """Sort key; the first of several points is the reference."""
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
        """Return the settings in which the two differ."""
        return [name for name in SETTINGS if self.settings[name] != other.settings[name]]


@dataclass(frozen=True)
class Pair:
    """A completed point with its reference: itself if it is the reference of others; None if there is none.

    why_not: why no reference has the same settings.
    """

    point: Candidate
    reference: Candidate | None
    why_not: str | None = None


def pairs_of(runs: Iterable[Run]) -> Iterator[Pair]:
    """Yield the points to compare: those with a counterpart of equal settings in another framework or strategy and, in
    a study of several frameworks, those without."""
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
    """Return e.g. 'a different number of GPUs'."""
    if "gpus" in settings:  # in weak scaling the global batch follows
        settings = [name for name in settings if name != "global_batch"]
    return f"a different {listed([SETTINGS[name] for name in settings], 'and')}"


def _families(runs: Iterable[Run]) -> list[list[Candidate]]:
    """Group points by model, data set and machine."""
    by_point: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        if run.point is not None and run.framework not in OWN_TRAININGS:
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
    """Pair points with the framework of the first: its point of the same strategy, else its first point, preferably
    one with identical pixels."""
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
    """Pair a point without a counterpart with the reference framework's point that shares the most settings; only their
    networks can be compared, not their steps."""
    completed = _completed(family)
    mine = point.framework == completed[0].framework
    others = [other for other in completed if (other.framework == completed[0].framework) != mine]
    if not others:
        return Pair(point, None, "no other framework has completed runs")
    nearest = min(others, key=lambda other: (len(point.unlike(other)), other.order))
    why = f"{nearest.framework} ran with {in_words(point.unlike(nearest))}"
    return Pair(point, None if mine else nearest, why)


def _completed(points: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates with completed runs, the reference framework's first."""
    return sorted((point for point in points if point.runs), key=lambda point: point.order)
