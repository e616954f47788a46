"""Sentences on a run that was cut short, continued, or had faults injected."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from analysis.read.attempts import Attempt, Piece, is_torn, lost_steps
from analysis.read.log.values import REWARM, Return
from analysis.read.matching import returns_of


def attempt_notes(attempts: Sequence[Attempt], pieces: Sequence[Piece]) -> list[str]:
    """Return notes on a run with several attempts or injected faults."""
    notes = []
    if len(pieces) > 1:
        notes.append(f"continued over {len(attempts)} attempts")
        cold = sum(block.n for piece in pieces for block in piece.blocks if block.phase == REWARM)
        if cold:
            notes.append(f"{_steps(cold, 're-warm-up ')} in no throughput figure")
    elif len(attempts) > 1:
        notes.append(f"{len(attempts)} attempts, the last one from step 0")
    if is_torn(pieces):
        first = pieces[0].attempt
        notes.append(f"attempt {first.number} went on from step {first.first_step:,}; what was before is not here")
    notes += [f"attempt {a.number}: {a.code_changed}" for a in attempts if a.code_changed]
    for former, latter in pairwise(attempts):
        machines = former.machine_leads, latter.machine_leads
        if all(machines) and not machines[0].keys() & machines[1].keys():
            notes.append(
                f"attempts {former.number} and {latter.number} shared no node: the time between them is by clocks that "
                "could not be compared"
            )
    for attempt in attempts:
        where = f"attempt {attempt.number}: " if len(attempts) > 1 else ""
        notes += [where + note for note in attempt.clock_notes]
        if attempt.resume is not None and attempt.resume.ignored:
            notes.append(f"attempt {attempt.number}: {attempt.resume.ignored}")
    if lost := lost_steps(attempts, pieces):
        notes.append(f"{_steps(lost)} lost work")
    notes += [f"attempt {a.number} ended: {a.why_ended or 'without a word'}" for a in attempts[:-1]]
    for attempt in attempts:
        notes += [_return_note(back) for back in returns_of(attempt.ranks)]
        for number, rank in attempt.ranks.items():
            if rank.fault is not None:
                name, step = rank.fault
                notes.append(f"{name} was injected at step {step:,} on rank {number} in attempt {attempt.number}")
    return notes


def _return_note(back: Return) -> str:
    updates = f"{back.lost_updates:,} update{'s' * (back.lost_updates != 1)} ({back.lost_samples:,} samples)"
    return (
        f"parameter server {back.server} ended in the block from step {back.step:,} and came back after "
        f"{back.seconds:.1f} s, without its momenta; {updates} did not reach its weights, and are in no throughput"
    )


def _steps(n: int, kind: str = "") -> str:
    return f"{n:,} {kind}step is" if n == 1 else f"{n:,} {kind}steps are"
