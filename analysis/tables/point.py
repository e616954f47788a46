"""A point of a study."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from analysis.base.constants import IMPORTED, OWN_TRAININGS
from analysis.base.text import gpus_text
from analysis.read.row import Run
from analysis.stats.estimates import Estimate
from analysis.stats.intervals import Interval
from analysis.tables.columns import POINT
from analysis.tables.names import framework_name, training_name

_FRAMEWORK = re.compile(r"(?:^|, )framework=([^,]+)")  # in the detail of an imported series, from that column


class Message(NamedTuple):
    """An allreduce alone, of a message of one size."""

    bytes: int | None  # None: not logged
    seconds: float  # of the slowest rank


@dataclass(frozen=True)
class Shown:
    """How the user wants a series shown.

    Attributes:
        place: its place among all series, from 0.
        label: its name; None for the usual one.
        colour: '#rrggbb'; None for the next of the palette.
    """

    place: int
    label: str | None = None
    colour: str | None = None


@dataclass(frozen=True, eq=False, slots=True)
class Point:
    """All runs of a series that differ only in seed and repeat. Figures are those of its completed runs, None without
    any; units are in the names. `_low` and `_high` are the ends of an interval; `_basis` states its basis, or why there
    is none."""

    series: str  # JSON of the fields of the spec that the points of the series share
    framework: str
    strategy: str
    model: str
    dataset: str
    precision: str
    scaling: str
    cluster: str
    device: str
    gpus: int
    nodes: int
    ranks_per_node: int
    global_batch: int | None  # None: not known of an imported run
    batch_per_gpu: int | None
    status: str  # of its runs
    run_ids: tuple[str, ...]
    members: tuple[Run, ...]  # all runs
    completed: tuple[Run, ...]  # the completed ones
    runs_completed: int
    runs_all: int
    marks: tuple[str, ...]  # what a reader has to know before using the figures
    unit: str = "samples"  # what the throughput counts
    samples_per_step: float | None = None  # over all ranks, in that unit
    label: str = ""  # of the series; series with the same label differ in their details
    detail: str = ""
    shown: Shown | None = None  # as the user asked
    reasons: str | None = None  # why runs did not complete
    notes: str | None = None
    oversubscribed: str | None = None
    device_names: tuple[str, ...] = ()
    communication: str | None = None
    versions: str | None = None
    code_versions: tuple[str, ...] = ()
    estimate: Estimate | None = None  # seconds per sample
    samples_per_second: float | None = None
    samples_per_second_low: float | None = None
    samples_per_second_high: float | None = None
    samples_per_second_basis: str | None = None
    samples_per_second_min: float | None = None  # over the runs
    samples_per_second_max: float | None = None
    relative_to_gpus: int | None = None  # of the baseline
    relative_to_strategy: str | None = None
    ideal_speedup: float | None = None
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None
    speedup_basis: str | None = None
    efficiency: float | None = None
    efficiency_low: float | None = None
    efficiency_high: float | None = None
    efficiency_basis: str | None = None
    test_accuracy: float | None = None
    test_accuracy_low: float | None = None
    test_accuracy_high: float | None = None
    test_accuracy_basis: str | None = None
    test_samples: int | None = None
    samples_seen: int | None = None
    goodput: float | None = None
    goodput_low: float | None = None
    goodput_high: float | None = None
    goodput_basis: str | None = None
    attempts: int | None = None  # of all completed runs together
    blocks: int | None = None
    outlier_blocks: int | None = None
    step_seconds: float | None = None
    cached_batch_seconds: float | None = None
    no_sync_seconds: float | None = None
    data_stall_seconds: float | None = None
    exposed_communication_seconds: float | None = None
    startup_seconds: float | None = None
    first_step_seconds: float | None = None
    first_block_seconds: float | None = None
    allreduce: tuple[Message, ...] = ()
    staleness_mean: float | None = None
    staleness_max: int | None = None

    @property
    def measured(self) -> bool:
        return bool(self.completed)

    @property
    def rate(self) -> float:
        """Samples per second of a measured point."""
        assert self.samples_per_second is not None, "a measured point has a throughput"
        return self.samples_per_second

    @property
    def cost(self) -> Estimate:
        """Seconds per sample of a measured point."""
        assert self.estimate is not None, "a measured point has an estimate"
        return self.estimate

    @property
    def base_gpus(self) -> int:
        """GPUs of the baseline of a measured point."""
        assert self.relative_to_gpus is not None, "a measured point has a baseline"
        return self.relative_to_gpus

    @property
    def size(self) -> str:
        """Number of GPUs or ranks as text: '4 GPUs', '1 CPU rank'."""
        return gpus_text(self.gpus, self.device)

    @property
    def is_own(self) -> bool:
        """True for the user's own training, of which only the steps are known."""
        return self.framework in OWN_TRAININGS

    @property
    def how(self) -> str:
        """'PyTorch DDP', the name of a training of the user's own, or what the user calls it."""
        if self.shown is not None and self.shown.label:
            return self.shown.label
        own = self.imported_framework or self.model
        return own if self.is_own else training_name(self.framework, self.strategy)

    @property
    def imported_framework(self) -> str | None:
        """Return the framework column of an imported table, if the series differ in it."""
        found = _FRAMEWORK.search(self.detail) if self.framework == IMPORTED else None
        return framework_name(found[1]) if found else None

    @property
    def other_detail(self) -> str:
        """The detail, without the framework of an imported series."""
        return _FRAMEWORK.sub("", self.detail).removeprefix(", ") if self.imported_framework else self.detail

    @property
    def work(self) -> str:
        """'resnet44 on cifar10, fp32', or the name of a training of the user's own."""
        return self.model if self.is_own else f"{self.model} on {self.dataset}, {self.precision}"

    @property
    def rate_unit(self) -> str:
        """'samples/s', 'tokens/s'."""
        return f"{self.unit}/s"

    @property
    def series_name(self) -> str:
        """Full name of its series."""
        precision = "" if self.is_own else self.precision
        return ", ".join(filter(None, (self.imported_framework, self.label, precision, self.other_detail)))

    @property
    def name(self) -> str:
        """Label and detail of its series."""
        name = ", ".join(filter(None, (self.imported_framework, self.label)))
        return f"{name} [{self.other_detail}]" if self.other_detail else name

    def interval(self, figure: str) -> Interval | None:
        """Return a figure with its interval."""
        value, low, high = (getattr(self, figure + end) for end in ("", "_low", "_high"))
        return None if value is None else Interval(value, low, high)

    def row(self) -> dict[str, Any]:
        """Return its columns for files, with several values joined by ';'."""
        values = {name: getattr(self, name) for name in POINT}
        return {name: ";".join(value) or None if isinstance(value, tuple) else value for name, value in values.items()}

    @property
    def devices(self) -> str:
        """Device names such as 'NVIDIA H200'; empty if no run logged them."""
        return ";".join(self.device_names)
