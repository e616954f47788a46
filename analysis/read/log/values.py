"""Values that a rank logs: blocks of steps, checkpoints, evaluations, and how the run ended.

analysis/read/log/rank.py creates them from valid events.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

import msgspec

from analysis.base.values import LARGEST_COUNT, LONGEST_SECONDS, MOST_JOULES

FIRST, WARMUP, REWARM, MEASURE = "first", "warmup", "rewarm", "measure"
PHASES = (FIRST, WARMUP, REWARM, MEASURE)
# Why an attempt took no more steps. SCRIPT_ENDED: the user's script was over before.
PRECISION, LIMIT, SCRIPT_ENDED = "precision", "limit", "script ended"
STOPPED = (PRECISION, LIMIT, SCRIPT_ENDED)
# Methods of observing the steps of a user's own training (docs/run-directory.md).
HOOKS, PROBE, PATTERN = "hooks", "probe", "pattern"

# Seconds of a traced step (docs/breakdown.md).
TRACED = ("window", "compute", "exposed_communication", "communication", "copies", "data_wait", "idle")


# Limits of analysis.base.values, which msgspec checks where it reads or converts a value.
_Count = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_COUNT)]
_Positive = Annotated[int, msgspec.Meta(ge=1, le=LARGEST_COUNT)]
_Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=LONGEST_SECONDS)]
_Joules = Annotated[float, msgspec.Meta(ge=0.0, le=MOST_JOULES)]


class Block(msgspec.Struct, frozen=True, gc=False):
    """Steps timed together, between two fences.

    Attributes:
        phase: FIRST (the first step of an attempt, alone), WARMUP, REWARM (cold steps after a restart) or MEASURE.
        step: the first step.
        n: number of steps.
        samples, joules: of the rank that logged the block; of all ranks once blocks are matched across ranks. Matched
            blocks exclude samples lost by a parameter server.
        issue_seconds, first_issue_seconds: host seconds to issue all steps, and the first one
            (harness/worker/timing.py); None in older logs.
        data_seconds: waiting for the DataLoader, on the rank that waited longest; None if unknown.
        left_out_seconds: evaluation, checkpoints and epoch changes that `seconds` leaves out; None if not logged.
    """

    phase: str
    step: _Count
    n: _Positive
    seconds: _Seconds
    samples: _Count
    joules: _Joules | None = None
    issue_seconds: _Seconds | None = None
    first_issue_seconds: _Seconds | None = None
    data_seconds: _Seconds | None = None
    left_out_seconds: _Seconds | None = None

    @property
    def end(self) -> int:
        return self.step + self.n


# Optional parts of a block: an impossible one is left out, and not the block.
BLOCK_PARTS = ("issue_seconds", "first_issue_seconds", "data_seconds", "left_out_seconds")


def with_possible_issue(block: Block) -> Block:
    """Return the block without times to issue its steps that are longer than itself."""
    known = {name: getattr(block, name) for name in ("issue_seconds", "first_issue_seconds")}
    if all(seconds is None or seconds <= block.seconds for seconds in known.values()):
        return block
    possible = {n: None if s is None or s > block.seconds else s for n, s in known.items()}
    return msgspec.structs.replace(block, **possible)


class StepsLine(Block, frozen=True, gc=False, kw_only=True):
    """A block as a line of a log. t: unix seconds at its end."""

    v: Literal[1]
    ev: Literal["steps"]
    t: _Seconds


class Resume(NamedTuple):
    """The checkpoint that an attempt resumed from.

    Attributes:
        step: step of the checkpoint; 0: from the beginning.
        from_attempt: the attempt that wrote it.
        ignored: why an existing checkpoint was not used.
    """

    step: int
    from_attempt: int | None
    ignored: str | None


class Gradients(NamedTuple):
    """The first synchronised gradient of an attempt: sum and sum of magnitudes over all elements; None if not finite.

    step: the first step of the attempt.
    """

    step: int
    sum: float | None
    magnitude: float | None


class Evaluation(NamedTuple):
    """Evaluation on the test samples.

    Attributes:
        step: optimiser steps so far.
        samples_seen: training samples so far, over all ranks.
        samples: test samples.
        loss: None if not finite.
        t: unix seconds at the end.
    """

    step: int
    samples_seen: int
    samples: int
    accuracy: float
    loss: float | None
    seconds: float | None
    t: float | None


class End(NamedTuple):
    """What a rank logged when training ended; None if not logged.

    Attributes:
        steps: steps of the whole run.
        samples: samples consumed by this rank in this attempt.
        checksum: checksum of its weights, if finite.
    """

    steps: int | None
    samples: int | None
    checksum: float | None


class Staleness(NamedTuple):
    """What parameter servers applied in the whole run.

    Attributes:
        updates: updates of each server.
        mean, largest: staleness in updates.
        samples: samples in these updates.
        lead: largest lead of a worker over the slowest, in steps; None if not logged.
    """

    updates: int
    mean: float
    largest: int
    samples: int
    lead: int | None


class Return(NamedTuple):
    """A parameter server that failed and returned.

    Attributes:
        step: first step of the block in which it returned.
        seconds: how long its workers waited.
        lost_updates, lost_samples: applied earlier, but missing from its restored weights.
    """

    step: int
    server: int
    seconds: float
    lost_updates: int
    lost_samples: int


class Outcome(NamedTuple):
    """How the steps of an attempt ended.

    Attributes:
        stopped: one of STOPPED.
        relative_half_width: of the interval of the step time, from its blocks; None with fewer than six.
        precision: requested precision; None if the number of steps was fixed.
        stationary: whether step time was stationary at the end of the warm-up; None if not tested.
        warmup_steps: length of the warm-up.
    """

    stopped: str
    relative_half_width: float | None
    precision: float | None
    stationary: bool | None
    warmup_steps: int | None


class Probing(NamedTuple):
    """Cost of the probes. share: relative to the attempt's time before them. skipped: why they were not run."""

    rounds: int
    seconds: float
    share: float
    limit: float
    skipped: str | None


class Seen(NamedTuple):
    """The method by which the steps of a user's own training were observed, and what it found.

    Attributes:
        method: HOOKS, PROBE or PATTERN.
        step_of: the optimiser class or function whose calls are the steps; None if unknown, as are the others.
        accumulation: micro-batches per step.
        epochs: passes over the data that the training went through.
    """

    method: str
    step_of: str | None
    accumulation: int | None
    epochs: int | None
