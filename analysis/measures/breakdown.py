"""Where the time of a step went: its parts, the same for all frameworks, and what each costs relative to a base.

The parts come from the probes that a run takes in rounds when its training is done (docs/breakdown.md). Of each round,
in seconds per step: F the full step of the slowest rank, C the same on a cached batch, U without synchronisation.

    data stall             F - C
    exposed communication  C - max(U)
    imbalance              max(U) - mean(U), over the ranks
    compute                mean(U)
    unexplained            step time of the timed steps, less all of these

The differences are made within a round, against drift, and a part is their median over the rounds. Nothing is clamped:
a small negative part is noise of the measurement, and shows how large that is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from analysis.read.row import Run
from analysis.stats.intervals import Interval
from analysis.stats.rounds import FEWEST_ROUNDS, difference, of_rounds, of_runs
from harness.core.strategies import info

DATA, COMMUNICATION, IMBALANCE, COMPUTE = "data_stall", "exposed_communication", "imbalance", "compute"
# Compute, communication and imbalance together, where a step cannot be taken without what the ranks exchange in it.
UNDIVIDED = "undivided"
UNEXPLAINED = "unexplained"
# In the order in which a waterfall shows them.
PART_NAMES = {
    DATA: "data stall",
    COMMUNICATION: "exposed communication",
    IMBALANCE: "imbalance",
    COMPUTE: "compute",
    UNDIVIDED: "compute and communication",
    UNEXPLAINED: "unexplained",
}
ROUNDING = 1e-9  # relative; less is no difference between two step times
INSEPARABLE = (COMMUNICATION, IMBALANCE, COMPUTE)  # what UNDIVIDED stands for


@dataclass(frozen=True)
class Parts:
    """The parts of the step of one run, or of all runs of a point.

    step_seconds: of the timed steps. seconds: of each part, in the order of PART_NAMES, those that are known; they add
    up to step_seconds. cached: of the step on a cached batch. basis: what the intervals come from, or why there are
    none. rounds: of the run, or the fewest of several. notes: what was left out, and why; one sentence each.
    allreduce, allreduce_bytes: seconds of an allreduce of the gradients' size alone; None: not measured.
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
        """The same with compute, communication and imbalance as one part."""
        if not self.divided:
            return self
        whole = sum(self.seconds[name].estimate for name in INSEPARABLE if name in self.seconds)
        seconds = {**self.seconds, UNDIVIDED: self.cached.around(whole)}
        ordered = {name: seconds[name] for name in PART_NAMES if name in seconds and name not in INSEPARABLE}
        return replace(self, seconds=ordered)


def run_parts(
    probes: Mapping[str, Any], step_seconds: float, blocks: Sequence[float] = (), asynchronous: bool = False
) -> Parts | None:
    """The parts of one run's step; None without the probe of the cached batch.

    probes: of each kind {"slowest": [...], "mean": [...]}, seconds per step by round, of the slowest rank and the mean
    over the ranks; of the allreduce also "bytes". blocks: seconds per step of each timed block. asynchronous: ranks do
    not wait for each other in each step, so that what imbalance costs is not known: compute is that of the slowest one.

    Logs from before the probes had rounds have no "full": the timed steps stand for it, and nothing is unexplained.
    """
    if "cached_batch" not in probes:
        return None
    kinds = [kind for kind in ("full", "cached_batch", "no_sync") if kind in probes]
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
        slowest, mean = (probes["no_sync"][which][:n] for which in ("slowest", "mean"))
        values[COMMUNICATION] = _less(cached, slowest)
        if asynchronous:
            notes.append("no imbalance: ranks do not wait for each other in each step; compute is the slowest rank's")
        else:
            values[IMBALANCE] = _less(slowest, mean)
        values[COMPUTE] = slowest if asynchronous else mean
    seconds = {name: of_rounds(of_round) for name, of_round in values.items()}
    if "full" in probes or n > 1:
        rest = step_seconds - sum(part.estimate for part in seconds.values())
        seconds[UNEXPLAINED] = difference(of_runs(blocks or [step_seconds]), of_rounds(full)).around(rest)
    basis = f"{n} round{'s' * (n > 1)} of one run"
    if n < FEWEST_ROUNDS:
        basis += ": too few for an interval"
    parts = Parts(step_seconds, seconds, of_rounds(cached), basis, n, tuple(notes))
    alone = probes.get("allreduce")
    if alone is None or not alone["slowest"]:
        return parts
    return replace(parts, allreduce=of_rounds(alone["slowest"]), allreduce_bytes=alone["bytes"])


def parts_of_runs(completed: Sequence[Run], step_seconds: float) -> Parts | None:
    """The parts of a point, from the rows of its completed runs; None where no run has probes."""
    found = [parts for run in completed if (parts := _parts_of_run(run)) is not None]
    if len(found) == 1:  # of several runs the interval is from them, not from the blocks of each
        found = [parts for run in completed if (parts := _parts_of_run(run, with_blocks=True)) is not None]
    if not found:
        return None
    point = point_parts(found, step_seconds)
    # A probe that would have taken too long is left out of the others' rounds.
    notes = [f"probes: {run.probes_skipped}" for run in completed if run.probes_json and run.probes_skipped]
    if len(found) < len(completed):
        notes.append(f"{len(completed) - len(found)} of {len(completed)} runs have no probes")
    return replace(point, notes=tuple(dict.fromkeys([*point.notes, *notes])))


def _parts_of_run(run: Run, with_blocks: bool = False) -> Parts | None:
    return run_parts(
        run.probes,
        run.step_seconds,
        run.block_step_seconds if with_blocks else (),
        asynchronous=info(str(run.strategy)).asynchronous,
    )


def point_parts(runs: Sequence[Parts], step_seconds: float) -> Parts:
    """The parts of a point: of its one run, or the means of several with an interval from the runs.

    runs: at least one. step_seconds: of the point; what the runs' own differ from it by is in the part `unexplained`.
    """
    if len(runs) == 1:
        return _with_step(runs[0], step_seconds)
    if not all(run.divided for run in runs):
        runs = [run.together() for run in runs]
    names = [name for name in PART_NAMES if any(name in run.seconds for run in runs)]
    seconds = {name: of_runs([run.seconds.get(name, Interval(0.0)).estimate for run in runs]) for name in names}
    alone = [run.allreduce.estimate for run in runs if run.allreduce is not None]
    one_size = len(alone) == len(runs) and len({run.allreduce_bytes for run in runs}) == 1
    own = Parts(
        step_seconds=fmean(run.step_seconds for run in runs),
        seconds=seconds,
        cached=of_runs([run.cached.estimate for run in runs]),
        basis=f"{len(runs)} runs",
        rounds=min(run.rounds for run in runs),
        notes=tuple(dict.fromkeys(note for run in runs for note in run.notes)),
        allreduce=of_runs(alone) if one_size else None,
        allreduce_bytes=runs[0].allreduce_bytes if one_size else None,
    )
    return _with_step(own, step_seconds)


def lost_parts(parts: Parts, base: Parts, work: float) -> dict[str, Interval]:
    """Seconds that each part of a step takes beyond what it would with perfect scaling; they add up to the step time
    less the ideal one, base.step_seconds x work.

    work: samples per GPU and step relative to the base's: 1 in weak scaling, base GPUs / GPUs in strong scaling.
    """
    if parts.divided != base.divided:
        parts, base = parts.together(), base.together()
    own, ideal = dict(parts.seconds), dict(base.seconds)
    if IMBALANCE not in own and IMBALANCE in ideal:  # compute is then that of the slowest rank: of the base too
        ideal[COMPUTE] = ideal[COMPUTE].around(ideal.pop(IMBALANCE).estimate + ideal[COMPUTE].estimate)
    # What is not known of one of them is in its other parts, and the difference has no interval.
    return {
        name: difference(own.get(name, Interval(0.0)), ideal.get(name, Interval(0.0)).times(work))
        for name in PART_NAMES
        if name in own or name in ideal
    }


def work_relative_to(global_batch: int, gpus: int, base_global_batch: int, base_gpus: int) -> float:
    """Samples per GPU and step, relative to those of the base."""
    return (global_batch / gpus) / (base_global_batch / base_gpus)


def shares(lost: Mapping[str, Interval], step_seconds: float) -> dict[str, Interval]:
    """Of efficiency: each lost part by the step time, so that 1 less all of them is the measured efficiency. The error
    of the step time itself is not in the intervals."""
    return {name: part.times(1 / step_seconds) for name, part in lost.items()}


def _with_step(parts: Parts, step_seconds: float) -> Parts:
    """The same of another step time: what it differs by is unexplained."""
    rest = step_seconds - parts.step_seconds
    if abs(rest) < ROUNDING * step_seconds:
        return parts
    unexplained = parts.seconds.get(UNEXPLAINED, Interval(0.0))
    seconds = {**parts.seconds, UNEXPLAINED: unexplained.around(unexplained.estimate + rest)}
    return replace(parts, step_seconds=step_seconds, seconds=seconds)


def _less(first: Sequence[float], second: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(first, second, strict=True)]
