"""Measure where the time of a step goes: the same step with and without some of its parts (docs/method.md).

A round takes one short block of each probe in turn, so that differences are taken between neighbours in time and drift
affects both alike. Probes run after training has been saved; they may change the weights.
"""

from __future__ import annotations

import time
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

from harness.core.events import EventWriter
from harness.core.rendezvous import Rendezvous
from harness.core.spec import RunSpec
from harness.worker.adapter import ALIGN_BYTES, Adapter
from harness.worker.faults import slowed
from harness.worker.profiler_ranges import span
from harness.worker.timing import timed

NO_SYNC, ONE_RANK = "no_sync", "one_rank"


class Probe(NamedTuple):
    """untimed: warm-up steps before each timed block, so that buffers and caches reach their steady state."""

    name: str
    step: Callable[[], None]
    untimed: int
    extra: Dict[str, int]


def run(
    spec: RunSpec,
    adapter: Adapter,
    rendezvous: Rendezvous,
    log: EventWriter,
    run_seconds: float,
    first_seconds: float,
    step_seconds: Optional[float],
) -> None:
    """Run up to measure.probe_rounds rounds within measure.probe_limit of the run's time so far, by rank 0's clock. If
    not even one fits, log why.

    run_seconds: this rank's time so far. first_seconds: its first training step. step_seconds: the other steps, equal
    on all ranks; None if unknown.
    """
    begun = time.perf_counter()

    def agreed(seconds: float) -> float:
        return adapter.allreduce_sum([seconds if rendezvous.rank == 0 else 0.0])[0]

    def spent() -> float:
        return agreed(time.perf_counter() - begun)

    so_far, compiling = agreed(run_seconds), agreed(first_seconds)
    limit = spec.measure.probe_limit * so_far
    kinds = _kinds(spec, adapter, rendezvous)

    def expected() -> Tuple[float, float]:
        """Return (seconds of the first calls, seconds of a round). No probe does more than a training step; if its
        duration is unknown, the first round measures it."""
        step = step_seconds or 0.0
        own_program = adapter.compiles and any(kind.name == NO_SYNC for kind in kinds)
        calls = sum(kind.untimed + spec.measure.probe_steps for kind in kinds)
        return len(kinds) * step + own_program * compiling, calls * step

    skipped = None
    if sum(expected()) > limit and adapter.compiles and adapter.separable:
        skipped = f"{NO_SYNC} left out: with its compilation, a round would take about {sum(expected()):.3g} s"
        kinds = [kind for kind in kinds if kind.name != NO_SYNC]
    rounds, round_seconds = 0, expected()[1]
    if sum(expected()) > limit:
        skipped = f"one round would take about {sum(expected()):.3g} s"
    else:
        # Let each probe compile and allocate.
        for kind in kinds:
            kind.step()
        adapter.fence()
        before = spent()
        while rounds < spec.measure.probe_rounds and before + round_seconds <= limit:
            for kind in kinds:
                _block(spec, adapter, log, kind, rounds)
            now = spent()
            round_seconds, before = max(round_seconds if rounds else 0.0, now - before), now
            rounds += 1
        if not rounds:
            skipped = f"the first call of each probe took {before:.3g} s"
    if skipped:
        skipped += f", and the limit is {limit:.3g} s (measure.probe_limit={spec.measure.probe_limit:g})"
    seconds = spent()
    log.write(
        "probes",
        rounds=rounds,
        seconds=seconds,
        share=seconds / so_far,
        limit=spec.measure.probe_limit,
        skipped=skipped,
    )


def _kinds(spec: RunSpec, adapter: Adapter, rendezvous: Rendezvous) -> List[Probe]:
    """Return the probes in the order of a round. The full step comes first: it caches the batch for the others."""
    gradient_bytes = adapter.facts()["gradient_bytes"]
    # During the other probes the pipeline prefetches. Use that up first, or a slow pipeline would look fast.
    ahead = adapter.batches.prefetch
    kinds = [
        Probe("full", slowed(adapter.step, spec, rendezvous), 1 + ahead, {}),
        Probe("cached_batch", slowed(adapter.step_on_cached_batch, spec, rendezvous), 1, {}),
    ]
    if adapter.has_one_rank_step:
        kinds.append(Probe(ONE_RANK, slowed(adapter.one_rank_step, spec, rendezvous), 1, {}))
    if adapter.separable:
        kinds.append(Probe(NO_SYNC, slowed(adapter.step_without_sync, spec, rendezvous), 1, {}))
    if gradient_bytes:
        message = Probe("allreduce", lambda: adapter.allreduce(gradient_bytes), 1, {"bytes": gradient_bytes})
        kinds.append(message)
    return kinds


def _block(spec: RunSpec, adapter: Adapter, log: EventWriter, kind: Probe, number: int) -> None:
    """Time one block with aligned ranks, and without prefetching unless the probe consumes batches."""
    if kind.name != "full":
        adapter.batches.settle()
    for _ in range(kind.untimed):
        kind.step()
    adapter.allreduce(ALIGN_BYTES)
    n = spec.measure.probe_steps
    with span(f"probe {kind.name}"):
        seconds = timed(adapter, kind.step, n).seconds
    log.write("probe", probe=kind.name, round=number, n=n, seconds=seconds, **kind.extra)
