"""Breakdown of a step's time into parts that are the same for all frameworks, and what each part costs relative to a
baseline.

The parts come from probes that a run takes in rounds after training (docs/breakdown.md). Per round, in seconds per
step: F is the full step of the slowest rank, C the same on a cached batch, A as if the rank had no peers, U without
synchronisation.

    data stall               F - C
    exposed synchronisation  C - max(A); without A, C - max(U)
    gradient bucketing       max(A) - max(U); only with A
    imbalance                max(U) - mean(U), over the ranks
    compute                  mean(U)
    unexplained              step time of the timed steps, less all of these

Differences are taken within a round, which cancels drift; a part is their median over the rounds. Nothing is clamped: a
small negative part is measurement noise and shows how large the noise is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any
from weakref import WeakKeyDictionary

from analysis.measures.traced import traced_notes
from analysis.read.row import Run
from analysis.stats.estimates import CONFIDENCE
from analysis.stats.intervals import Interval
from analysis.stats.rounds import FEWEST_ROUNDS, difference, of_blocks, of_rounds, of_runs
from harness.core.strategies import info

# In file formats, exposed synchronisation keeps its former name.
DATA, SYNCHRONISATION, IMBALANCE, COMPUTE = "data_stall", "exposed_communication", "imbalance", "compute"
BUCKETING = "bucketing"  # what DDP's buckets and hooks take without peers
# Compute, communication and imbalance together, for strategies that cannot take a step without communication.
UNDIVIDED = "undivided"
UNEXPLAINED = "unexplained"
ONE_RANK = "one_rank"  # the probe
# In the order of the waterfall chart.
PART_NAMES = {
    DATA: "data stall",
    SYNCHRONISATION: "exposed synchronisation",
    BUCKETING: "gradient bucketing",
    IMBALANCE: "imbalance",
    COMPUTE: "compute",
    UNDIVIDED: "compute and communication",
    UNEXPLAINED: "unexplained",
}
# Of a training of the user's own.
WAITING_NOTE = "data stall is the waiting for the DataLoader on the host, the most that data can cost"
NO_WAITING_NOTE = "no DataLoader was seen: waiting for data is part of compute"
UNDIVIDED_NOTE = "compute and communication are one part"
ROUNDING = 1e-9  # relative difference of step times that counts as none
INSEPARABLE = (SYNCHRONISATION, BUCKETING, IMBALANCE, COMPUTE)  # what UNDIVIDED replaces


@dataclass(frozen=True)
class Parts:
    """The parts of the step of a run, or of all runs of a point.

    step_seconds: of the timed steps. seconds: of each known part, in the order of PART_NAMES; they add up to
    step_seconds. cached: of the step on a cached batch. basis: what the intervals come from, or why there are none.
    rounds: of the run, or the fewest of several runs. notes: what was left out and why, one sentence each. allreduce,
    allreduce_bytes: an allreduce as large as the gradients; None if not measured.
    """

    step_seconds: float
    seconds: Mapping[str, Interval]
    cached: Interval
    basis: str
    rounds: int
    notes: tuple[str, ...] = ()
    allreduce: Interval | None = None
    allreduce_bytes: int | None = None

    @property
    def divided(self) -> bool:
        return UNDIVIDED not in self.seconds

    def together(self) -> Parts:
        """The same parts with compute, communication and imbalance merged into one."""
        if not self.divided:
            return self
        whole = sum(self.seconds[name].estimate for name in INSEPARABLE if name in self.seconds)
        seconds = {**self.seconds, UNDIVIDED: self.cached.around(whole)}
        ordered = {name: seconds[name] for name in PART_NAMES if name in seconds and name not in INSEPARABLE}
        return replace(self, seconds=ordered)

    def without_bucketing(self) -> Parts:
        """The same parts with bucketing among exposed synchronisation, as without a probe of one rank."""
        if BUCKETING not in self.seconds:
            return self
        seconds = dict(self.seconds)
        both = seconds.pop(BUCKETING).estimate + seconds[SYNCHRONISATION].estimate
        return replace(self, seconds={**seconds, SYNCHRONISATION: seconds[SYNCHRONISATION].around(both)})


def run_parts(
    probes: Mapping[str, Any],
    step_seconds: float,
    blocks: Sequence[float] = (),
    asynchronous: bool = False,
    confidence: float = CONFIDENCE,
) -> Parts | None:
    """The parts of one run's step; None if the run did not probe a cached batch.

    probes: by kind {"slowest": [...], "mean": [...]}: seconds per step in each round, of the slowest rank and averaged
    over the ranks; for the allreduce also "bytes". blocks: seconds per step of each timed block, in time order.
    asynchronous: ranks do not wait for each other in each step, so the cost of imbalance is unknown and compute is that
    of the slowest rank. confidence: of the intervals.

    Older logs, whose probes had no rounds, have no "full": the timed steps replace it, and nothing is unexplained.
    """
    if "cached_batch" not in probes:
        return None
    kinds = [kind for kind in ("full", "cached_batch", ONE_RANK, "no_sync") if kind in probes]
    n = min(len(probes[kind]["slowest"]) for kind in kinds)
    if n == 0:
        return None
    cached = probes["cached_batch"]["slowest"][:n]
    full = probes["full"]["slowest"][:n] if "full" in probes else [step_seconds] * n
    values = {DATA: _less(full, cached)}
    notes = [] if "full" in probes else ["no probe of the full step: data stall is relative to the timed steps"]
    if "no_sync" not in probes:
        values[UNDIVIDED] = cached
        notes.append("no step without synchronisation: compute, communication and imbalance are one part")
    else:
        values |= _separated(probes, n, asynchronous)
        if asynchronous:
            notes.append("no imbalance: ranks do not wait for each other in each step; compute is the slowest rank's")
    seconds = {name: of_rounds(of_round, confidence) for name, of_round in values.items()}
    if "full" in probes or n > 1:
        rest = step_seconds - sum(part.estimate for part in seconds.values())
        timed = of_blocks(blocks or [step_seconds], confidence)
        seconds[UNEXPLAINED] = difference(timed, of_rounds(full, confidence)).around(rest)
    parts = Parts(step_seconds, seconds, of_rounds(cached, confidence), _basis(n), n, tuple(notes))
    alone = probes.get("allreduce")
    if alone is None or not alone["slowest"]:
        return parts
    return replace(parts, allreduce=of_rounds(alone["slowest"], confidence), allreduce_bytes=alone["bytes"])


def own_parts(
    probes: Mapping[str, Any],
    step_seconds: float,
    blocks: Sequence[float],
    waits: Sequence[float],
    undivided: str | None = None,
    traced: Sequence[str] = (),
    confidence: float = CONFIDENCE,
) -> Parts | None:
    """The parts of a step of a training of the user's own; None if nothing of it is known.

    probes, blocks, confidence: as for `run_parts`. waits: of each block's waiting for the DataLoader; empty: no
    DataLoader was seen. undivided: why there are no probes. traced: what a trace shows.
    """
    known = {DATA: of_blocks(waits, confidence)} if waits else {}
    others = _less(blocks, waits) if waits else blocks
    kinds = [kind for kind in ("cached_batch", ONE_RANK, "no_sync") if kind in probes]
    n = min((len(probes[kind]["slowest"]) for kind in kinds), default=0)
    if n and "no_sync" in probes:
        cached = probes["cached_batch"]["slowest"][:n]
        seconds = {**known, **{name: of_rounds(each, confidence) for name, each in _separated(probes, n).items()}}
        rest = step_seconds - sum(part.estimate for part in seconds.values())
        whole = of_rounds(cached, confidence)
        seconds[UNEXPLAINED] = difference(of_blocks(others, confidence), whole).around(rest)
        note = WAITING_NOTE if waits else NO_WAITING_NOTE
        return Parts(step_seconds, seconds, whole, _basis(n), n, (note, *traced))
    if not waits and not traced:
        return None
    rest = step_seconds - sum(part.estimate for part in known.values())
    whole = of_blocks(others, confidence).around(rest)
    why = f"{UNDIVIDED_NOTE}: {undivided}" if undivided else UNDIVIDED_NOTE
    notes = (WAITING_NOTE if waits else NO_WAITING_NOTE, why, *traced)
    return Parts(step_seconds, {**known, UNDIVIDED: whole}, whole, f"{len(blocks)} blocks of one run", 0, notes)


def parts_of_runs(completed: Sequence[Run], step_seconds: float, confidence: float = CONFIDENCE) -> Parts | None:
    """The parts of a point, from its completed runs; None if no run has probes."""
    found = [parts for run in completed if (parts := _estimates(run)) is not None]
    if len(found) == 1:  # intervals of several runs come from the runs, not from their rounds and blocks
        found = [parts for run in completed if (parts := _parts_of_run(run, confidence, with_blocks=True)) is not None]
    if not found:
        return None
    point = point_parts(found, step_seconds, confidence)
    # The rounds leave out a probe that would have taken too long.
    notes = [f"probes: {run.probes_skipped}" for run in completed if run.probes_json and run.probes_skipped]
    if len(found) < len(completed):
        notes.append(f"{len(completed) - len(found)} of {len(completed)} runs have no probes")
    return replace(point, notes=tuple(dict.fromkeys([*point.notes, *notes])))


# What `_estimates` has found.
_known: WeakKeyDictionary[Run, Parts | None] = WeakKeyDictionary()


def _estimates(run: Run) -> Parts | None:
    """The parts of one run, of which only the estimates are used: once for all points and intervals that need them."""
    if run not in _known:
        _known[run] = _parts_of_run(run, CONFIDENCE)
    return _known[run]


def _parts_of_run(run: Run, confidence: float, with_blocks: bool = False) -> Parts | None:
    traced = traced_notes(run.traces or ())
    if run.method is not None:
        return own_parts(
            run.probes,
            run.step_seconds,
            run.block_step_seconds,
            run.data_waits,
            run.probes_skipped,
            traced,
            confidence,
        )
    asynchronous = info(str(run.strategy)).asynchronous
    blocks = run.block_step_seconds if with_blocks else ()
    parts = run_parts(run.probes, run.step_seconds, blocks, asynchronous, confidence)
    return None if parts is None else replace(parts, notes=(*parts.notes, *traced))


def point_parts(runs: Sequence[Parts], step_seconds: float, confidence: float = CONFIDENCE) -> Parts:
    """The parts of a point: those of its only run, or means over its runs with an interval from the runs.

    runs: at least one. step_seconds: of the point; its difference from the runs' own step time counts as `unexplained`.
    """
    if len(runs) == 1:
        return _with_step(runs[0], step_seconds)
    if not all(run.divided for run in runs):
        runs = [run.together() for run in runs]
    if not all(BUCKETING in run.seconds for run in runs):
        runs = [run.without_bucketing() for run in runs]
    names = [name for name in PART_NAMES if any(name in run.seconds for run in runs)]
    seconds = {
        name: of_runs([run.seconds.get(name, Interval(0.0)).estimate for run in runs], confidence) for name in names
    }
    alone = [run.allreduce.estimate for run in runs if run.allreduce is not None]
    one_size = len(alone) == len(runs) and len({run.allreduce_bytes for run in runs}) == 1
    own = Parts(
        step_seconds=fmean(run.step_seconds for run in runs),
        seconds=seconds,
        cached=of_runs([run.cached.estimate for run in runs], confidence),
        basis=f"{len(runs)} runs",
        rounds=min(run.rounds for run in runs),
        notes=tuple(dict.fromkeys(note for run in runs for note in run.notes)),
        allreduce=of_runs(alone, confidence) if one_size else None,
        allreduce_bytes=runs[0].allreduce_bytes if one_size else None,
    )
    return _with_step(own, step_seconds)


def lost_parts(parts: Parts, base: Parts, work: float, plain: bool = False) -> dict[str, Interval]:
    """Seconds that each part takes beyond perfect scaling. They add up to the step time less the ideal step time,
    base.step_seconds x work.

    work: samples per GPU and step relative to the baseline: 1 in weak scaling, baseline GPUs / GPUs in strong scaling.
    plain: the baseline is the framework alone, which has no buckets.
    """
    if parts.divided != base.divided:
        parts, base = parts.together(), base.together()
    if plain and BUCKETING in parts.seconds:
        base = replace(base, seconds={**base.seconds, BUCKETING: Interval(0.0, 0.0, 0.0)})
    elif (BUCKETING in parts.seconds) != (BUCKETING in base.seconds):
        parts, base = parts.without_bucketing(), base.without_bucketing()
    own, ideal = dict(parts.seconds), dict(base.seconds)
    if IMBALANCE not in own and IMBALANCE in ideal:  # compute is then that of the slowest rank: of the base too
        ideal[COMPUTE] = ideal[COMPUTE].around(ideal.pop(IMBALANCE).estimate + ideal[COMPUTE].estimate)
    # A part unknown on one side is included in that side's other parts, and its difference has no interval.
    return {
        name: difference(own.get(name, Interval(0.0)), ideal.get(name, Interval(0.0)).times(work))
        for name in PART_NAMES
        if name in own or name in ideal
    }


def work_relative_to(global_batch: float, gpus: int, base_global_batch: float, base_gpus: int) -> float:
    """Samples per GPU and step, relative to those of the baseline."""
    return (global_batch / gpus) / (base_global_batch / base_gpus)


def shares(lost: Mapping[str, Interval], step_seconds: float) -> dict[str, Interval]:
    """Each lost part divided by the step time, so that 1 less their sum is the measured efficiency. The intervals
    ignore the error of the step time itself."""
    return {name: part.times(1 / step_seconds) for name, part in lost.items()}


def _with_step(parts: Parts, step_seconds: float) -> Parts:
    """The same parts for another step time; the difference is unexplained."""
    rest = step_seconds - parts.step_seconds
    if abs(rest) < ROUNDING * step_seconds:
        return parts
    unexplained = parts.seconds.get(UNEXPLAINED, Interval(0.0))
    seconds = {**parts.seconds, UNEXPLAINED: unexplained.around(unexplained.estimate + rest)}
    return replace(parts, step_seconds=step_seconds, seconds=seconds)


def _separated(probes: Mapping[str, Any], n: int, asynchronous: bool = False) -> dict[str, list[float]]:
    """What n rounds with and without synchronisation show."""
    cached = probes["cached_batch"]["slowest"][:n]
    slowest, mean = (probes["no_sync"][which][:n] for which in ("slowest", "mean"))
    found = {SYNCHRONISATION: _less(cached, slowest), IMBALANCE: _less(slowest, mean), COMPUTE: mean}
    if asynchronous:
        return {SYNCHRONISATION: found[SYNCHRONISATION], COMPUTE: list(slowest)}
    if ONE_RANK in probes:
        one_rank = probes[ONE_RANK]["slowest"][:n]
        found |= {SYNCHRONISATION: _less(cached, one_rank), BUCKETING: _less(one_rank, slowest)}
    return {name: found[name] for name in PART_NAMES if name in found}


def _basis(rounds: int) -> str:
    too_few = ": too few for an interval" if rounds < FEWEST_ROUNDS else ""
    return f"{rounds} round{'s' * (rounds > 1)} of one run{too_few}"


def _less(first: Sequence[float], second: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(first, second, strict=True)]
