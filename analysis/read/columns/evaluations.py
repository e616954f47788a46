"""The evaluations of a run that count, and the cost of training up to each."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from operator import attrgetter, gt
from typing import Any

from analysis.base.numbers import total_if_known
from analysis.read.attempts import Attempt, Piece, allocated
from analysis.read.log.values import Evaluation


def evaluation_columns(attempts: Sequence[Attempt], pieces: Sequence[Piece]) -> dict[str, Any]:
    """Return the column `evaluations`: a JSON list of objects ordered by step; no column if rank 0 logged none.

    step, samples: training so far. train_seconds: duration of all steps so far, including warm-up and re-warm-up but
    not evaluations; each step counts once, on its slowest rank. wall_seconds: allocated time since the start of the
    first attempt, without the time between attempts. joules: energy of the devices in train_seconds. None: unknown.
    """
    counting = _counting(pieces)
    if not counting:
        return {}
    trained = _Trained(pieces)
    entries = [_entry(attempts, trained, attempt, found) for attempt, found in counting]
    return {"evaluations": json.dumps(entries)}


def _counting(pieces: Sequence[Piece]) -> list[tuple[Attempt, Evaluation]]:
    """Return the evaluations of the chain, one per step: a resumed attempt may repeat that of its checkpoint."""
    counting: dict[int, tuple[Attempt, Evaluation]] = {}
    limits = {before.attempt.number: after.attempt.first_step for before, after in pairwise(pieces)}
    for piece in pieces:
        limit = limits.get(piece.attempt.number, math.inf)
        rank = piece.attempt.ranks.get(0)
        for step, found in rank.evaluations.items() if rank else ():
            if piece.attempt.first_step <= step <= limit:
                counting[step] = (piece.attempt, found)
    return [counting[step] for step in sorted(counting)]


class _Trained:
    """Cumulative cost of the steps in a run's chain."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        blocks = [block for piece in pieces for block in piece.blocks]
        self._ends = [block.step + block.n for block in blocks]
        if any(map(gt, self._ends, self._ends[1:])):
            blocks.sort(key=attrgetter("end"))
            self._ends.sort()
        self._steps = list(accumulate([block.n for block in blocks], initial=0))
        self._seconds = [block.seconds for block in blocks]
        self._joules = [block.joules for block in blocks]

    def until(self, step: int) -> tuple[float | None, float | None]:
        """Return the total (seconds, joules) of all steps up to this one."""
        n = bisect_right(self._ends, step)
        # A step that is missing from a rank's log has no known cost.
        if self._steps[n] != step:
            return None, None
        return math.fsum(self._seconds[:n]), total_if_known(self._joules[:n])


def _entry(attempts: Sequence[Attempt], trained: _Trained, attempt: Attempt, found: Evaluation) -> Mapping[str, Any]:
    seconds, joules = trained.until(found.step)
    return {
        "step": found.step,
        "samples": found.samples_seen,
        "train_seconds": seconds,
        "wall_seconds": _wall_seconds(attempts, attempt, found),
        "evaluation_seconds": found.seconds,
        "joules": joules,
        "accuracy": found.accuracy,
        "loss": found.loss,
        "test_samples": found.samples,
    }


def _wall_seconds(attempts: Sequence[Attempt], last: Attempt, found: Evaluation) -> float | None:
    if last.begin is None or found.t is None or last.clock_jumped:
        return None
    before = total_if_known(allocated(attempt) for attempt in attempts if attempt.number < last.number)
    return None if before is None else before + found.t - last.begin
