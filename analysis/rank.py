"""What one rank logged, with its values checked: a log is a file, and a file may hold anything."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

from analysis.text import printable
from harness.events import EventLog

WARMUP, REWARM, MEASURE = "warmup", "rewarm", "measure"

LARGEST_COUNT = 2**63 - 1  # what a column of whole numbers holds
# A duration beyond this is damage, not a measurement; within it, sums and ratios of durations stay finite.
LONGEST_SECONDS = 1e12


class Block(NamedTuple):
    """Steps that were timed together, between two fences.

    phase: WARMUP, REWARM (the cold first steps after a restart) or MEASURE. step: the first one. n: how many.
    samples, joules: of the rank that logged the block, or of all ranks where blocks have been matched over them: then
    without samples that a parameter server lost.
    """

    phase: str
    step: int
    n: int
    seconds: float
    samples: int
    joules: float | None = None

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


class RankLog:
    """What one rank logged, with events whose values make no sense counted as damaged and left out.

    last_t, first_step_t: unix seconds of the latest event, and of the begin of the first step. checkpoints: seconds of
    each, by step. evaluations: by step, the last of each. fault: (name, step) of a failure on purpose. left_at: the
    step after which the rank left, saved, as it was told to.
    """

    def __init__(self, log: EventLog) -> None:
        self.damaged = log.unreadable_lines
        self.start: Mapping[str, Any] | None = None
        self.world_size: int | None = None
        self.parameters: int | None = None
        self.last_t: float | None = None
        self.first_step_t: float | None = None
        self.resume: Resume | None = None
        self.blocks: list[Block] = []
        self.gradients: Gradients | None = None
        self.checkpoints: dict[int, float] = {}
        self.fault: tuple[str, int] | None = None
        self.left_at: int | None = None
        self.probes: dict[tuple[str, int | None], list[tuple[int, float]]] = defaultdict(list)
        self.accuracy: tuple[float, int, int | None] | None = None
        self.staleness: Staleness | None = None
        self.returns: list[Return] = []
        self.evaluations: dict[int, Evaluation] = {}
        self.end: End | None = None
        readers = {
            "start": self._read_start,
            "resume": self._read_resume,
            "steps": self._read_steps,
            "gradients": self._read_gradients,
            "checkpoint": self._read_checkpoint,
            "fault": self._read_fault,
            "leave": self._read_leave,
            "probe": self._read_probe,
            "staleness": self._read_staleness,
            "server_back": self._read_server_back,
            "eval": self._read_eval,
            "end": self._read_end,
        }
        for event in log.events:
            reader = readers.get(event["ev"])
            if reader is not None and not reader(event):
                self.damaged += 1
            t = seconds_of(event, "t")
            if t is not None and (self.last_t is None or t > self.last_t):
                self.last_t = t

    def _read_start(self, event: Mapping[str, Any]) -> bool:
        self.start = event
        self.world_size = count_of(event, "world_size", 1)
        self.parameters = count_of(event, "parameters", 1)
        return self.world_size is not None

    def _read_resume(self, event: Mapping[str, Any]) -> bool:
        step, ignored = count_of(event, "step", 0), event.get("ignored")
        if step is None:
            return False
        reason = None if ignored is None else printable(str(ignored))
        self.resume = Resume(step, count_of(event, "from_attempt", 1), reason)
        return True

    def _read_steps(self, event: Mapping[str, Any]) -> bool:
        step, n = count_of(event, "step", 0), count_of(event, "n", 1)
        seconds, samples = seconds_of(event, "seconds"), count_of(event, "samples", 0)
        if step is None or n is None or seconds is None or samples is None:
            return False
        phase = event.get("phase")
        if phase in (WARMUP, REWARM, MEASURE):
            if not self.blocks:
                t = seconds_of(event, "t")
                self.first_step_t = None if t is None else t - seconds
            self.blocks.append(Block(phase, step, n, seconds, samples, number_of(event, "joules")))
        return True

    def _read_gradients(self, event: Mapping[str, Any]) -> bool:
        step = count_of(event, "step", 0)
        total, magnitude = number_of(event, "sum", -math.inf), number_of(event, "magnitude")
        for name, value in (("sum", total), ("magnitude", magnitude)):
            if value is None and event.get(name, "absent") is not None:
                return False
        if step is None:
            return False
        if self.gradients is None:
            self.gradients = Gradients(step, total, magnitude)
        return True

    def _read_checkpoint(self, event: Mapping[str, Any]) -> bool:
        step, seconds = count_of(event, "step", 0), seconds_of(event, "seconds")
        if step is None or seconds is None:
            return False
        self.checkpoints[step] = seconds
        return True

    def _read_fault(self, event: Mapping[str, Any]) -> bool:
        step = count_of(event, "step", 0)
        if step is None:
            return False
        self.fault = (printable(str(event.get("fault"))), step)
        return True

    def _read_leave(self, event: Mapping[str, Any]) -> bool:
        self.left_at = count_of(event, "step", 0)
        return self.left_at is not None

    def _read_probe(self, event: Mapping[str, Any]) -> bool:
        n, seconds = count_of(event, "n", 1), seconds_of(event, "seconds")
        if n is None or seconds is None or not isinstance(event.get("probe"), str):
            return False
        self.probes[event["probe"], count_of(event, "bytes", 0)].append((n, seconds))
        return True

    def _read_staleness(self, event: Mapping[str, Any]) -> bool:
        mean = number_of(event, "mean")
        updates, largest, samples = (count_of(event, name, 0) for name in ("updates", "max", "samples"))
        if mean is None or updates is None or largest is None or samples is None:
            return False
        self.staleness = Staleness(updates, mean, largest, samples, count_of(event, "lead", 0))
        return True

    def _read_server_back(self, event: Mapping[str, Any]) -> bool:
        step, server, updates, samples = (
            count_of(event, name, 0) for name in ("step", "server", "lost_updates", "lost_samples")
        )
        seconds = seconds_of(event, "seconds")
        if step is None or server is None or seconds is None or updates is None or samples is None:
            return False
        self.returns.append(Return(step, server, seconds, updates, samples))
        return True

    def _read_eval(self, event: Mapping[str, Any]) -> bool:
        accuracy, samples = number_of(event, "accuracy"), count_of(event, "samples", 1)
        if accuracy is None or accuracy > 1 or samples is None:
            return False
        step, seen = count_of(event, "step", 0), count_of(event, "samples_seen", 0)
        self.accuracy = (accuracy, samples, seen)
        if step is not None and seen is not None:
            measured = (number_of(event, "loss"), seconds_of(event, "seconds"), seconds_of(event, "t"))
            self.evaluations[step] = Evaluation(step, seen, samples, accuracy, *measured)
        return True

    def _read_end(self, event: Mapping[str, Any]) -> bool:
        checksum = number_of(event, "weights_checksum", -math.inf)
        self.end = End(count_of(event, "steps", 0), count_of(event, "samples", 0), checksum)
        return True


def is_count(value: Any, minimum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= LARGEST_COUNT


def count_of(record: Mapping[str, Any], key: str, minimum: int) -> int | None:
    value = record.get(key)
    return value if is_count(value, minimum) else None


def number_of(record: Mapping[str, Any], key: str, minimum: float = 0.0) -> float | None:
    """A finite number from `minimum` on, or None: JSON readers take NaN, infinities and 400-digit integers too."""
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        value = float(value)
    except OverflowError:
        return None
    return value if minimum <= value < math.inf and value > -math.inf else None


def seconds_of(record: Mapping[str, Any], key: str) -> float | None:
    """A duration, or None where the value is none that a run could have taken."""
    seconds = number_of(record, key)
    return seconds if seconds is not None and seconds <= LONGEST_SECONDS else None
