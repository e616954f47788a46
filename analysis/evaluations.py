"""The evaluations of a run that count, and what its training had cost until then."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from analysis.attempts import Attempt, Piece, allocated, total_if_known
from analysis.rank import Block, Evaluation


def evaluation_columns(attempts: Sequence[Attempt], pieces: Sequence[Piece]) -> dict[str, Any]:
    """`evaluations`: JSON, a list of objects by step; nothing where rank 0 logged none.

    step, samples: of training, so far. train_seconds: of all steps until there, warm-up and re-warm-up included, each
    step once and as long as its slowest rank took; evaluations are not in it. wall_seconds: allocated, from the begin
    of the first attempt on, everything included but the time between attempts. joules: that the devices took in
    train_seconds. None: not known.
    """
    entries = [_entry(attempts, pieces, attempt, found) for attempt, found in _counting(pieces)]
    return {"evaluations": json.dumps(entries)} if entries else {}


def _counting(pieces: Sequence[Piece]) -> list[tuple[Attempt, Evaluation]]:
    """Those of the chain of pieces, each step once: where an attempt went on from, it may have evaluated again."""
    counting: dict[int, tuple[Attempt, Evaluation]] = {}
    limits = {before.attempt.number: after.attempt.first_step for before, after in pairwise(pieces)}
    for piece in pieces:
        limit = limits.get(piece.attempt.number, math.inf)
        rank = piece.attempt.ranks.get(0)
        for step, found in rank.evaluations.items() if rank else ():
            if piece.attempt.first_step <= step <= limit:
                counting[step] = (piece.attempt, found)
    return [counting[step] for step in sorted(counting)]


def _entry(
    attempts: Sequence[Attempt], pieces: Sequence[Piece], attempt: Attempt, found: Evaluation
) -> Mapping[str, Any]:
    return {
        "step": found.step,
        "samples": found.samples_seen,
        "train_seconds": _trained(pieces, found.step, lambda block: block.seconds),
        "wall_seconds": _wall_seconds(attempts, attempt, found),
        "evaluation_seconds": found.seconds,
        "joules": _trained(pieces, found.step, lambda block: block.joules),
        "accuracy": found.accuracy,
        "loss": found.loss,
        "test_samples": found.samples,
    }


def _trained(pieces: Sequence[Piece], step: int, what: Callable[[Block], float | None]) -> float | None:
    """Of all steps until there, together."""
    blocks = [block for piece in pieces for block in piece.blocks if block.end <= step]
    # Where a step is not in the logs of all ranks, neither is what it took.
    return total_if_known(map(what, blocks)) if sum(block.n for block in blocks) == step else None


def _wall_seconds(attempts: Sequence[Attempt], last: Attempt, found: Evaluation) -> float | None:
    if last.begin is None or found.t is None:
        return None
    before = total_if_known(allocated(attempt) for attempt in attempts if attempt.number < last.number)
    return None if before is None else before + found.t - last.begin
