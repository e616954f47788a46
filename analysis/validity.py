"""Whether the figures of a completed run can be trusted: that it ran as its spec asks, on all ranks alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from analysis.attempts import Piece
from analysis.rank import RankLog
from analysis.text import gpus_text, printable
from harness.spec import RunSpec

CHECKSUM_TOLERANCE = 1e-6  # relative; replicas that an allreduce keeps equal differ by nothing, rounding by ~1e-12


def faults_of(spec: RunSpec, pieces: Sequence[Piece]) -> list[str]:
    """Why the figures of a completed run cannot be trusted, one sentence each; empty when they can.

    Every attempt that a figure comes from is held to the spec; the checksums are those of the last one, which ended.
    """
    if not pieces:
        return _attempt_faults(spec, {})
    faults = []
    last = pieces[-1]
    for piece in pieces:
        if piece.blocks or piece is last:
            where = f"attempt {piece.attempt.number}: " if len(pieces) > 1 else ""
            faults += [where + fault for fault in _attempt_faults(spec, piece.attempt.ranks)]
    if spec.strategy == "allreduce":
        faults += _checksum_faults(last.attempt.ranks)
    return faults


def _attempt_faults(spec: RunSpec, ranks: Mapping[int, RankLog]) -> list[str]:
    faults = []
    absent = [rank for rank in range(spec.gpus) if rank not in ranks]
    if absent:
        shown = ", ".join(map(str, absent[:4])) + (", …" if len(absent) > 4 else "")
        faults.append(f"no log of rank {shown}")
    surplus = [rank for rank in ranks if rank >= spec.gpus]
    if surplus:
        faults.append(f"a log of rank {surplus[0]}, though the spec asks for {gpus_text(spec.gpus, None)}")
    for number, rank in ranks.items():
        if rank.world_size is None:
            faults.append(f"rank {number} logged no world size")
            break
        if rank.world_size != spec.gpus:
            faults.append(f"rank {number} saw a world size of {rank.world_size}, the spec asks for {spec.gpus}")
            break
    if len({rank.world_size for rank in ranks.values()} - {None}) > 1:
        faults.append("the ranks disagree on the world size")
    # A silent fall-back to the CPU, or to another batch, would make a figure of another measurement.
    asked = {
        "device": spec.cluster.device,
        "global_batch": spec.global_batch,
        "batch_per_gpu": spec.batch_per_gpu,
    }
    for name, value in asked.items():
        other = {str(rank.start[name]) for rank in ranks.values() if rank.start and name in rank.start} - {str(value)}
        if other:
            faults.append(f"a rank ran with {name} {printable(min(other))}, the spec asks for {value}")
    if len({rank.resume.step for rank in ranks.values() if rank.resume}) > 1:
        faults.append("the ranks went on from different steps")
    return faults


def _checksum_faults(ranks: Mapping[int, RankLog]) -> list[str]:
    known = {number: rank.checksum for number, rank in ranks.items() if rank.checksum is not None}
    if not known:
        return []
    silent = [number for number in ranks if number not in known]
    if silent:
        return [f"rank {silent[0]} logged no finite weights_checksum, other ranks did"]
    low, high = min(known.values()), max(known.values())
    scale = max(abs(low), abs(high))
    difference = (high - low) / scale if scale else 0.0
    if difference > CHECKSUM_TOLERANCE:
        return [f"the ranks ended with different weights: their checksums differ by {difference:.1e} (relative)"]
    return []
