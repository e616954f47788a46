"""What a rank logs, as values: blocks of steps, checkpoints, evaluations, and how it all ended.

They are made where a log is read (analysis/read/log/rank.py), of events whose values make sense.
"""

from __future__ import annotations

from typing import NamedTuple

FIRST, WARMUP, REWARM, MEASURE = "first", "warmup", "rewarm", "measure"


class Block(NamedTuple):
    """Steps that were timed together, between two fences.

    phase: FIRST (the first step of an attempt, alone), WARMUP, REWARM (cold steps after a restart) or MEASURE. step:
    the first one. n: how many. samples, joules: of the rank that logged the block, or of all ranks where blocks have
    been matched over them: then without samples that a parameter server lost. issue_seconds, first_issue_seconds: host
    seconds to issue all steps, and the first one, as harness/worker/timing.py has them; None in older logs.
    """

    phase: str
    step: int
    n: int
    seconds: float
    samples: int
    joules: float | None = None
    issue_seconds: float | None = None
    first_issue_seconds: float | None = None

    @property
    def end(self) -> int:
        return self.step + self.n


class Resume(NamedTuple):
    """Where an attempt went on. step: of the checkpoint, 0: from the beginning. from_attempt: which one had written it.
    ignored: why a checkpoint that was there was not used."""

    step: int
    from_attempt: int | None
    ignored: str | None


class Gradients(NamedTuple):
    """The first synchronised gradient of an attempt: its sum and its sum of magnitudes, over all elements.

    step: the first of the attempt. None: not finite.
    """

    step: int
    sum: float | None
    magnitude: float | None


class Evaluation(NamedTuple):
    """The test samples, scored after so many steps. samples_seen: of training, by all ranks. loss: where it is finite.
    t: unix seconds when it was done."""

    step: int
    samples_seen: int
    samples: int
    accuracy: float
    loss: float | None
    seconds: float | None
    t: float | None


class End(NamedTuple):
    """What a rank logged when its training had ended. steps: of the whole run. samples: that this rank consumed in this
    attempt. checksum: of its weights, where it is finite. None: not logged."""

    steps: int | None
    samples: int | None
    checksum: float | None


class Staleness(NamedTuple):
    """What parameter servers applied in the whole run. updates: of each server. mean, largest: staleness in updates.
    samples: that the updates were made of. lead: steps that a worker was ahead of the slowest; None: not logged."""

    updates: int
    mean: float
    largest: int
    samples: int
    lead: int | None


class Return(NamedTuple):
    """A parameter server that ended and came back. step: the first of the block in which it did. seconds: that its
    workers waited. lost_updates, lost_samples: what it had applied, and its weights do not hold."""

    step: int
    server: int
    seconds: float
    lost_updates: int
    lost_samples: int


class Outcome(NamedTuple):
    """How the steps of an attempt ended. stopped: "precision" or "limit". relative_half_width: of the interval of the
    median step time over its blocks; None below six. precision: asked for; None: the steps were fixed. stationary: at
    the end of the warm-up; None: not tested. warmup_steps: that were taken."""

    stopped: str
    relative_half_width: float | None
    precision: float | None
    stationary: bool | None
    warmup_steps: int | None


class Probing(NamedTuple):
    """What the probes took. share: of the attempt's time before them. skipped: why there are none."""

    rounds: int
    seconds: float
    share: float
    limit: float
    skipped: str | None
