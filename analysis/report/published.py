"""Compares a study's speedups with published ones, and lists how the two measurements differ.

published.json has only what each source states; the rest is null and listed in `not_known`. A figure is compared with
series of its framework, strategy, model and data set; null matches any. No source gives a spread.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from analysis.base.constants import PLAIN
from analysis.base.text import count, gpus_text, listed, times
from analysis.report.sentences import baseline, interval_text
from analysis.tables.point import Point
from analysis.tables.series import series_of
from analysis.tables.warnings import FAULT_INJECTED, WORK_DIFFERS
from harness.core.spec import EMULATED

PUBLISHED_NOTE = (
    "Published figures stand beside this study's, not above them: a speedup depends on what one GPU did alone, on the "
    "batches, and on the machine. Where these differ or are not known, so is what the difference means."
)


@dataclass(frozen=True)
class Published:
    """One published speedup. page: this project's page on the study. trained: the training in the source's words.
    speedup: on `gpus`, relative to `base_gpus`. hardware: in words. gpu: as in the device's name. scaling: 'strong' or
    'weak'. None: unknown. not_known: what else the source does not state."""

    source: str
    page: str
    trained: str
    framework: str | None
    strategy: str | None
    model: str | None
    dataset: str
    speedup: float
    gpus: int
    base_gpus: int
    hardware: str | None
    gpu: str | None
    gpus_per_node: int | None
    scaling: str | None
    not_known: tuple[str, ...]


@dataclass(frozen=True)
class Beside:
    """A series and a published figure, in sentences. differs: why the two are not comparable. scaling: the study's if
    the source does not state its own; else None."""

    published: str
    own: str
    differs: tuple[str, ...]
    scaling: str | None

    @property
    def verdict(self) -> str:
        if self.differs:
            also = [f"whether the source means {self.scaling} scaling is not known"] if self.scaling else []
            return f"not comparable: {'; '.join([*self.differs, *also])}"
        only = f"; comparable only if it means {self.scaling} scaling, which it does not say" if self.scaling else ""
        return f"the same setting, as far as the source states it{only}"


@cache
def published() -> tuple[Published, ...]:
    entries = json.loads((Path(__file__).parent / "published.json").read_text(encoding="utf-8"))
    return tuple(Published(**{**entry, "not_known": tuple(entry["not_known"])}) for entry in entries)


def beside_published(points: Sequence[Point]) -> list[Beside]:
    """Compare each matching series at the published number of GPUs, else at the nearest measured one (on a tie, the
    smaller). points: ordered by series."""
    found = []
    for series in series_of(points):
        for figure in published():
            if _belongs(figure, series.first) and (point := _nearest(figure, series.measured)) is not None:
                scaling = point.scaling if figure.scaling is None else None
                found.append(Beside(_their(figure), _own(point), tuple(_differences(figure, point)), scaling))
    return found


def _belongs(figure: Published, point: Point) -> bool:
    if point.framework == EMULATED or point.is_own:
        return False
    stated = {name: getattr(figure, name) for name in ("framework", "strategy", "model", "dataset")}
    return all(value is None or getattr(point, name) == value for name, value in stated.items())


def _nearest(figure: Published, measured: Sequence[Point]) -> Point | None:
    larger = [point for point in measured if point.gpus > point.base_gpus]
    return min(larger, key=lambda p: (p.gpus > figure.gpus, abs(p.gpus - figure.gpus)), default=None)


def _their(figure: Published) -> str:
    return (
        f"{figure.speedup:g}× on {figure.gpus} GPUs relative to {gpus_text(figure.base_gpus, 'cuda')}: "
        f"{figure.source}; {figure.trained}; {figure.hardware or 'hardware not stated'}; "
        f"not known: {listed(figure.not_known, 'and')}; the source gives no spread"
    )


def _own(point: Point) -> str:
    unit = "rank" if point.device == "cpu" else "GPU"
    return (
        f"{times(point.speedup)} on {point.size} relative to {baseline(point)} "
        f"({interval_text(point, 'speedup')}): "
        f"{point.how}, {point.model} on {point.dataset}; "
        f"{point.nodes} x {point.ranks_per_node} on {point.devices or 'hardware not logged'}, "
        f"cluster {point.cluster}; {point.scaling} scaling, global batch {count(point.global_batch)}, "
        f"{count(point.batch_per_gpu)} per {unit}, {point.precision}"
    )


def _differences(figure: Published, point: Point) -> list[str]:
    """Return differences from what the source states, and warnings that make the point no scaling result."""
    said = []
    if point.device == "cpu":
        said.append("this study ran on CPUs, not on GPUs")
    elif figure.gpu is not None and figure.gpu not in point.devices:
        said.append(f"another GPU: {point.devices or 'not logged'}, not {figure.gpu}")
    if point.gpus != figure.gpus:
        said.append(f"another number of GPUs: {point.gpus}, not {figure.gpus}")
    elif figure.gpus_per_node is not None and point.ranks_per_node != min(figure.gpus, figure.gpus_per_node):
        said.append(f"{point.ranks_per_node} GPUs to a node, not {figure.gpus_per_node}")
    if point.relative_to_gpus != figure.base_gpus:
        said.append(f"relative to {point.relative_to_gpus} GPUs, not {figure.base_gpus}")
    if point.relative_to_strategy == PLAIN and figure.strategy != PLAIN:
        said.append("relative to the framework alone; what the source divides by is not known")
    if figure.scaling not in (None, point.scaling):
        said.append(f"{point.scaling} scaling here, {figure.scaling} there")
    if point.oversubscribed:
        said.append(f"oversubscribed: {point.oversubscribed}")
    said += [mark for mark in point.marks if mark in (FAULT_INJECTED, WORK_DIFFERS)]
    return said
