"""Validity checks of a completed run: it ran as specified, with all ranks in agreement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from analysis.base.numbers import relative
from analysis.base.text import gpus_text, printable
from analysis.read.attempts import Attempt, Piece
from analysis.read.columns.workload import processes_of
from analysis.read.log.rank import RankLog
from harness.core.spec import RunSpec
from harness.core.strategies import BOUNDED, SYNCHRONOUS, info

# Relative. After an allreduce the ranks are equal or, if each adds in its own order, differ by the rounding of single
# precision, 6e-8. Ranks that were not synchronised differ in the first digits.
AGREEMENT = 1e-6


def faults_of(spec: RunSpec, pieces: Sequence[Piece]) -> list[str]:
    """Return why the figures of a completed run cannot be trusted, one sentence each; empty if they can.

    Every attempt that contributes figures is checked against the spec; weights are those of the last attempt.
    """
    if not pieces:
        return _attempt_faults(spec, {})
    faults = []
    for attempt in _held(pieces):
        where = f"attempt {attempt.number}: " if len(pieces) > 1 else ""
        faults += [where + fault for fault in _attempt_faults(spec, attempt.ranks)]
    if info(spec.strategy).synchronous:
        faults += _weights_faults(pieces[-1].attempt.ranks)
    return faults + _updates_faults(spec, pieces[-1].attempt.ranks)


def unchecked_of(spec: RunSpec, pieces: Sequence[Piece]) -> list[str]:
    """Return which checks were skipped because the logs lack their data; the logs may predate the check."""
    last = pieces[-1].attempt.ranks if pieces else {}
    if not last:
        return []
    notes = []
    if info(spec.strategy).synchronous:
        if all(rank.end is None or rank.end.checksum is None for rank in last.values()):
            notes.append("no rank logged a finite weights_checksum: that the ranks agree was not checked")
        for attempt in _held(pieces):
            logged = [rank.gradients for rank in attempt.ranks.values()]
            if len(logged) > 1 and not any(logged) and any(rank.blocks for rank in attempt.ranks.values()):
                notes.append("no rank logged its gradients: that the ranks agree on them was not checked")
                break
            if logged and all(g is not None and None in (g.sum, g.magnitude) for g in logged):
                notes.append("the first gradient is not finite: that the ranks agree on it was not checked")
                break
    if info(spec.strategy).servers and not any(rank.staleness for rank in last.values()):
        notes.append("no rank logged what the parameter servers applied: staleness and samples were not checked")
    if spec.workload is not None:  # its samples follow from its spec
        return notes
    if any(rank.end is None or rank.end.samples is None for rank in last.values()):
        notes.append("not every rank logged the samples that it consumed: they were not checked")
    elif cut := [number for number, rank in last.items() if not _complete(rank)]:
        notes.append(f"rank {cut[0]} lacks steps in its log: the samples that it consumed were not checked")
    return notes


def _held(pieces: Sequence[Piece]) -> list[Attempt]:
    """Return the attempts that contribute figures, and the last one."""
    return [piece.attempt for piece in pieces if piece.blocks or piece is pieces[-1]]


def _attempt_faults(spec: RunSpec, ranks: Mapping[int, RankLog]) -> list[str]:
    faults = []
    absent = [rank for rank in range(processes_of(spec, ranks)) if rank not in ranks]
    if absent:
        shown = ", ".join(map(str, absent[:4])) + (", …" if len(absent) > 4 else "")
        faults.append(f"no log of rank {shown}")
    surplus = [rank for rank in ranks if rank >= spec.gpus]
    if surplus:
        faults.append(f"a log of rank {surplus[0]}, though the spec asks for {gpus_text(spec.gpus, None)}")
    faults += _start_faults(spec, ranks)
    if len({rank.resume.step for rank in ranks.values() if rank.resume}) > 1:
        faults.append("the ranks went on from different steps")
    if info(spec.strategy).synchronous:
        faults += _gradients_faults(ranks)
    return faults + _samples_faults(spec, ranks)


def _start_faults(spec: RunSpec, ranks: Mapping[int, RankLog]) -> list[str]:
    faults = []
    asked_for = {spec.gpus}
    if spec.workload is not None and spec.workload.processes_per_node == "node":
        asked_for.add(spec.placement.nodes)
    for number, rank in ranks.items():
        if rank.world_size is None:
            if spec.workload is not None and (rank.start is not None or _is_beside_a_pattern(spec, number)):
                continue  # noted as not verified
            faults.append(f"rank {number} logged no world size")
            break
        if rank.world_size not in asked_for:
            faults.append(f"rank {number} saw a world size of {rank.world_size}, the spec asks for {spec.gpus}")
            break
    if len({rank.world_size for rank in ranks.values()} - {None}) > 1:
        faults.append("the ranks disagree on the world size")
    # A silent fallback to the CPU or to another batch would be a different measurement.
    asked = {
        "device": spec.cluster.device,
        "global_batch": spec.global_batch,
        "batch_per_gpu": spec.batch_per_gpu,
    }
    for name, value in asked.items():
        other = {str(rank.start[name]) for rank in ranks.values() if rank.start and name in rank.start} - {str(value)}
        if other:
            faults.append(f"a rank ran with {name} {printable(min(other))}, the spec asks for {value}")
    built = sorted({rank.parameters for rank in ranks.values() if rank.parameters is not None})
    if len(built) > 1:
        faults.append(f"the ranks built different networks: {built[0]:,} and {built[-1]:,} parameters")
    return faults


def _is_beside_a_pattern(spec: RunSpec, rank: int) -> bool:
    """Return whether the rank says nothing, since the output of rank 0 is read."""
    return rank > 0 and spec.workload is not None and spec.workload.pattern is not None


def _gradients_faults(ranks: Mapping[int, RankLog]) -> list[str]:
    """Report ranks whose first gradients differ: they were not synchronised."""
    logged = {number: rank.gradients for number, rank in ranks.items() if rank.gradients is not None}
    if not logged:
        return []
    if silent := [number for number in ranks if number not in logged]:
        return [f"rank {silent[0]} logged no gradients, other ranks did"]
    finite = [(g.sum, g.magnitude) for g in logged.values() if g.sum is not None and g.magnitude is not None]
    if not finite:
        return []
    if len(finite) < len(logged):
        lost = next(number for number, g in logged.items() if None in (g.sum, g.magnitude))
        return [f"the first gradient of rank {lost} is not finite, that of other ranks is"]
    sums, magnitudes = zip(*finite, strict=True)
    difference = relative(max(max(sums) - min(sums), max(magnitudes) - min(magnitudes)), max(magnitudes))
    if difference > AGREEMENT:
        return [f"the ranks' first gradients are different: their checksums differ by {difference:.1e} (relative)"]
    return []


def _samples_faults(spec: RunSpec, ranks: Mapping[int, RankLog]) -> list[str]:
    """Report a rank that consumed more or fewer samples than its steps account for, e.g. by skipping batches. The
    ranks of a replica consume the same samples; each logs its part."""
    if spec.workload is not None:  # a rank's share is the spec's, not counted
        return []
    for number, rank in ranks.items():
        if rank.end is None or rank.end.samples is None or not _complete(rank):
            continue
        said = sum([block.samples for block in rank.blocks]) * spec.ranks_per_replica
        if rank.end.samples != said:
            return [f"rank {number} consumed {rank.end.samples:,} training samples, its steps say {said:,}"]
    return []


def _updates_faults(spec: RunSpec, ranks: Mapping[int, RankLog]) -> list[str]:
    """Report updates that did not reach the model, or later than the strategy allows. Covers the whole run, since
    checkpoints keep the servers' counters."""
    faults = []
    for rank in ranks.values():
        if rank.staleness is None:
            continue
        applied, lead = rank.staleness.samples, rank.staleness.lead
        if rank.end is not None and rank.end.steps is not None:
            said = rank.end.steps * spec.global_batch
            if applied != said:
                faults.append(f"the servers' updates hold {applied:,} training samples, the ranks' steps say {said:,}")
        options = spec.strategy_options if isinstance(spec.strategy_options, Mapping) else {}
        bound = options.get("staleness") if info(spec.strategy).servers == BOUNDED else None
        if isinstance(bound, int) and lead is not None and lead > bound:
            faults.append(f"a rank was {lead} steps ahead of the slowest, the spec allows {bound}")
        if info(spec.strategy).servers == SYNCHRONOUS and rank.staleness.largest:
            faults.append(f"a synchronous update came {rank.staleness.largest} updates late")
    return faults


def _complete(rank: RankLog) -> bool:
    """Return whether the log has all steps of the rank in this attempt; lines can be lost."""
    if rank.end is None or rank.end.steps is None:
        return False
    first = rank.resume.step if rank.resume else 0
    return sum([block.n for block in rank.blocks]) >= rank.end.steps - first


def _weights_faults(ranks: Mapping[int, RankLog]) -> list[str]:
    known = {n: rank.end.checksum for n, rank in ranks.items() if rank.end and rank.end.checksum is not None}
    if not known:
        return []
    silent = [number for number in ranks if number not in known]
    if silent:
        return [f"rank {silent[0]} logged no finite weights_checksum, other ranks did"]
    low, high = min(known.values()), max(known.values())
    difference = relative(high - low, max(abs(low), abs(high)))
    if difference > AGREEMENT:
        return [f"the ranks ended with different weights: their checksums differ by {difference:.1e} (relative)"]
    return []
