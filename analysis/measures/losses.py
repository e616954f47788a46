"""Time that each point lost, by cause: its parts against those of its baseline."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from analysis.base.constants import IMPORTED, PLAIN
from analysis.base.numbers import common
from analysis.measures.bandwidth import Network, network_of
from analysis.measures.breakdown import Parts, lost_parts, parts_of_runs, shares, work_relative_to
from analysis.measures.flops import TERA, Peak, peak_of, training_flops_per_sample
from analysis.measures.pop import EFFICIENCIES, efficiencies
from analysis.measures.traced import traced_exposed, traced_notes
from analysis.read.row import Run
from analysis.stats.estimates import ALPHA
from analysis.stats.intervals import Interval, range_of
from analysis.tables.pairing import spec_of
from analysis.tables.point import Point
from analysis.tables.series import without_strategy
from harness.core.spec import EMULATED
from harness.core.workload.spec import COMMAND, SCRIPT

NO_PROBES = "no probes in the logs"
OWN_PARTS = "the training of your own has no probes, and no DataLoader was seen"
IMPORTED_PARTS = "a table or log has no parts of a step"
Base = tuple[str | None, int | None, str]  # strategy, GPUs and series of a baseline


@dataclass(frozen=True)
class Loss:
    """The step time of a measured point, by its parts.

    parts: None if none of its runs has probes. lost: seconds of each part beyond the ideal step; shares: the same as
    shares of efficiency; both empty without a baseline other than itself. base: that baseline. ideal_seconds: step time
    at 100 % efficiency. basis: what the intervals of `lost` come from. traced: exposed communication by a trace, mean
    and range over the ranks. efficiencies: by the names of
    analysis.measures.pop. tflops: achieved by one GPU, in 10^12 operations per second; None if unknown. utilisation:
    MFU. probe_rounds, probe_share: the minimum and the maximum over its runs.
    """

    point: Point
    parts: Parts | None
    ideal_seconds: float | None = None
    lost: Mapping[str, Interval] = field(default_factory=dict)
    shares: Mapping[str, Interval] = field(default_factory=dict)
    base: Point | None = None
    basis: str | None = None
    traced: Interval | None = None
    efficiencies: Mapping[str, float | None] = field(default_factory=lambda: dict.fromkeys(EFFICIENCIES))
    network: Network = field(default_factory=Network)
    tflops: float | None = None
    peak: Peak = field(default=Peak(None, "not looked up"))
    probe_rounds: int | None = None
    probe_share: float | None = None

    @property
    def is_known(self) -> bool:
        """Return whether anything but the step time is known."""
        return self.parts is not None or self.tflops is not None

    @cached_property
    def largest(self) -> Largest | None:
        """The largest loss, or the candidates for it; None if no part shows a loss."""
        if self.base is None or not any(_costs(share) for share in self.shares.values()):
            return None
        confidence = 1 - ALPHA / len(self.shares)
        own, base = (
            parts_of_runs(point.completed, _step_seconds(point), confidence) for point in (self.point, self.base)
        )
        assert own is not None
        assert base is not None
        return largest_of(lost_parts(own, base, _work(self.point, self.base), self.base.strategy == PLAIN))

    @property
    def utilisation(self) -> float | None:
        return None if self.tflops is None or self.peak.tflops is None else self.tflops / self.peak.tflops

    @property
    def notes(self) -> tuple[str, ...]:
        return (*(self.parts.notes if self.parts else ()), *self.network.notes)


class Largest(NamedTuple):
    """parts: what may be the largest loss, the largest estimate first. told: it is the first of them, told from all
    others and from 0."""

    parts: tuple[str, ...]
    told: bool


@dataclass(frozen=True)
class Losses:
    """points: every measured point, in the order of the table of points. lacking: completed runs without probes, by
    reason."""

    points: tuple[Loss, ...]
    lacking: Mapping[str, Sequence[str]]


def losses_of(points: Sequence[Point]) -> Losses:
    """The losses of the points of a study."""
    measured = [point for point in points if point.measured]
    parts = [
        None if point.samples_per_step is None else parts_of_runs(point.completed, _step_seconds(point))
        for point in measured
    ]
    bases = _bases(measured)
    found = []
    for point, own in zip(measured, parts, strict=True):
        at = bases.get(_key(point.relative_to_strategy, point.relative_to_gpus, point.series))
        base = None if at is None or measured[at] is point else (measured[at], parts[at])
        found.append(_loss(point, own, base))
    return Losses(tuple(found), _lacking([run for point in measured for run in point.completed]))


def largest_of(joint: Mapping[str, Interval]) -> Largest:
    """Return what is known of the largest part.

    joint: intervals of all k parts at 1 - ALPHA / k, which hold together with 95 % (Bonferroni), however the parts
    depend on each other. So a part whose interval lies below that of the largest estimate is smaller.
    """
    first, *others = sorted(joint, key=lambda part: -joint[part].estimate)
    least = joint[first].low
    if least is None or least <= 0:
        return Largest((first, *(part for part in others if joint[part].estimate > 0)), told=False)
    rivals = [part for part in others if (most := joint[part].high) is None or most >= least]
    return Largest((first, *rivals), told=not rivals)


def _costs(share: Interval) -> bool:
    return share.estimate > 0 and (share.low is None or share.excludes(0))


def _work(point: Point, base: Point) -> float:
    assert point.samples_per_step is not None
    assert base.samples_per_step is not None
    return work_relative_to(point.samples_per_step, point.gpus, base.samples_per_step, base.gpus)


def _step_seconds(point: Point) -> float:
    """The step time that the point's throughput implies, so that the shares add up with its efficiency: that of its
    runs, except if parameter servers lost samples."""
    assert point.samples_per_step is not None, "its parts are of a step"
    return point.samples_per_step / point.rate


def _bases(points: Sequence[Point]) -> dict[Base, int]:
    """The indices of the points that are baselines (analysis/tables/points.py): the first of a series with so many
    GPUs, or the framework alone."""
    found: dict[Base, int] = {}
    for i, point in enumerate(points):
        found.setdefault(_key(point.strategy, point.gpus, point.series), i)
    return found


def _key(strategy: str | None, gpus: int | None, series: str) -> Base:
    return strategy, gpus, without_strategy(series) if strategy == PLAIN else series


def _loss(
    point: Point,
    parts: Parts | None,
    base: tuple[Point, Parts | None] | None,
) -> Loss:
    spec, completed = spec_of(point.series), point.completed
    columns: dict[str, Any] = {"peak": _peak(point), "tflops": _tflops(point, spec)}
    columns["traced"] = range_of([each for run in completed for each in traced_exposed(run.traces or ())])
    known = [run for run in completed if run.probe_share is not None]
    if known:
        columns["probe_share"] = max(run.probe_share for run in known if run.probe_share is not None)
    if parts is None:
        return Loss(point, None, **columns)
    work = None
    base_parts = parts if base is None else base[1]
    if base is not None:
        other, _ = base
        work = _work(point, other)
        columns["ideal_seconds"] = _step_seconds(other) * work
        if base_parts is None:
            columns["basis"] = "the base has no probes: nothing to compare the parts with"
        else:
            lost = lost_parts(parts, base_parts, work, other.strategy == PLAIN)
            columns |= {"lost": lost, "shares": shares(lost, parts.step_seconds), "base": other}
            columns["basis"] = f"{parts.basis}; base: {base_parts.basis}"
    return Loss(
        point,
        parts,
        efficiencies=efficiencies(parts, base_parts, 1.0 if base is None else work),
        network=network_of(
            parts,
            point.strategy,
            spec.get("strategy_options") or {},
            point.gpus,
            point.nodes,
            common(run.link_gb_per_s for run in completed),
            common(run.gpu_link_gb_per_s for run in completed),
        ),
        probe_rounds=parts.rounds,
        **columns,
    )


def _tflops(point: Point, spec: Mapping[str, Any]) -> float | None:
    """Achieved by one GPU: samples per second per GPU, times operations per sample."""
    unknown = point.framework == EMULATED or point.is_own
    needed = None if unknown else training_flops_per_sample(point.model, spec["dataset"])
    return None if needed is None else needed * point.rate / point.gpus / TERA


def _peak(point: Point) -> Peak:
    if point.framework == EMULATED:
        return Peak(None, "emulated: nothing was computed")
    if point.is_own:
        return Peak(None, "the arithmetic of your own training is not known")
    return peak_of(
        point.device, point.device_names, point.precision, common(run.peak_tflops for run in point.completed)
    )


def _lacking(completed: Sequence[Run]) -> dict[str, list[str]]:
    by_reason: dict[str, list[str]] = defaultdict(list)
    for run in completed:
        own_trace = run.method is not None and traced_notes(run.traces or ())
        if run.probes_json is None and run.data_waits_json is None and not own_trace:
            off = spec_of(str(run.point)).get("measure", {}).get("probe_steps") == 0
            own = {IMPORTED: IMPORTED_PARTS, SCRIPT: OWN_PARTS, COMMAND: OWN_PARTS}.get(str(run.framework))
            reason = run.probes_skipped or own or ("measure.probe_steps=0" if off else NO_PROBES)
            by_reason[reason].append(run.run_id)
    return dict(sorted(by_reason.items()))
