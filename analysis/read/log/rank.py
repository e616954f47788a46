"""Reads and validates what one rank logged. Logs may contain anything."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import msgspec

from analysis.base.text import printable
from analysis.base.values import LONGEST_SECONDS, count_of, joules_of, number_of, seconds_of
from analysis.read.damage import NO_EVENT, REPEATED, UNREADABLE_LINES, VALUE
from analysis.read.log.clock import WITHIN_BLOCKS, clock_damage, ticks
from analysis.read.log.values import (
    BLOCK_PARTS,
    HOOKS,
    PATTERN,
    PHASES,
    PROBE,
    STOPPED,
    TRACED,
    Block,
    End,
    Evaluation,
    Gradients,
    Outcome,
    Probing,
    Resume,
    Return,
    Seen,
    Staleness,
    StepsLine,
    with_possible_issue,
)
from harness.core.events import SCHEMA_VERSION, UnknownVersion


class RankLog:
    """What one rank logged. Invalid events are counted as damage and left out.

    Attributes:
        events: number of events read.
        bytes: size of the file.
        damage: count of each kind of damage (`analysis.read.damage.KINDS`).
        first_t, last_t: unix seconds of the first and last event.
        first_step_t: unix seconds at the start of the first step.
        start_t: unix seconds of the start event.
        first_ended, second_began: (step, unix seconds) at the end of the first block and the start of the second.
        last_block_t: unix seconds at the end of the last block.
        checkpoints: seconds to save each checkpoint, by step.
        evaluations: the last evaluation at each step, by step.
        fault: (name, step) of an injected fault.
        left_at: step after which the rank saved and exited on request.
        probes: (n, seconds) by round, by (probe, message bytes).
        resources, devices, ceiling: unparsed events; see analysis/read/columns/resources.py and ceilings.py.
        trace: file, profiler, steps and reason of the trace event.
        fallbacks: deviations from what the run requested.
    """

    @classmethod
    def of(cls, events: Iterable[Mapping[str, Any]]) -> RankLog:
        """Build a log from these events, assuming the current version."""
        log = cls()
        log.add_all({"v": SCHEMA_VERSION, **event} for event in events)
        return log

    def __init__(self) -> None:
        self.events = self.bytes = 0
        self.damage: Counter[str] = Counter()
        self.start: Mapping[str, Any] | None = None
        self.world_size: int | None = None
        self.parameters: int | None = None
        self.first_t: float | None = None
        self.last_t: float | None = None
        self.first_step_t: float | None = None
        self.start_t: float | None = None
        self.first_ended: tuple[int, float] | None = None
        self.second_began: tuple[int, float] | None = None
        self.last_block_t: float | None = None
        self.resume: Resume | None = None
        self.blocks: list[Block] = []
        self.gradients: Gradients | None = None
        self.checkpoints: dict[int, float] = {}
        self.fault: tuple[str, int] | None = None
        self.left_at: int | None = None
        self.probes: dict[tuple[str, int | None], dict[int, tuple[int, float]]] = defaultdict(dict)
        self.outcome: Outcome | None = None
        self.probing: Probing | None = None
        self.accuracy: tuple[float, int, int | None] | None = None
        self.staleness: Staleness | None = None
        self.returns: list[Return] = []
        self.evaluations: dict[int, Evaluation] = {}
        self.end: End | None = None
        self.seen: Seen | None = None
        self.resources: Mapping[str, Any] | None = None
        self.devices: list[Mapping[str, Any]] = []
        self.trace: Mapping[str, Any] | None = None
        self.ceiling: Mapping[str, Any] | None = None
        self.fallbacks: list[str] = []
        # Unix seconds of the last event, and of the last one that is not within a block.
        self._t: float | None = None
        self._outside = 0.0
        self._previous: Mapping[str, Any] = {}

    @property
    def damaged(self) -> int:
        """Number of unreadable lines."""
        return sum(self.damage[kind] for kind in UNREADABLE_LINES)

    def add_all(self, records: Iterable[Any]) -> None:
        """Add the next lines of the log: StepsLine, or what the line holds. Raises UnknownVersion."""
        for kind, group in groupby(records, key=type):
            if kind is StepsLine:
                self._add_lines(list(group))
            else:
                self._add_events(group)

    def _add_events(self, records: Iterable[Any]) -> None:
        damage = self.damage
        for record in records:
            if type(record) is not dict or "v" not in record or type(kind := record.get("ev")) is not str:
                damage[NO_EVENT] += 1
                continue
            if record["v"] != SCHEMA_VERSION:
                raise UnknownVersion(
                    f"schema version {record['v']!r}; this code reads version {SCHEMA_VERSION}: "
                    "update it, or read the study with the version that wrote it"
                )
            # Timestamps have microseconds, so an equal line is a duplicate.
            if record == self._previous:
                damage[REPEATED] += 1
                continue
            self._previous = record
            self.events += 1
            reader = _READERS.get(kind)
            if reader is not None and not reader(self, record):
                damage[VALUE] += 1
            t = record.get("t")
            if (type(t) is float and 0.0 <= t <= LONGEST_SECONDS) or (t := seconds_of(record, "t")) is not None:
                self._tell(t, record)

    def put_on_clock(self, lead: float | None) -> None:
        """Correct all times by the seconds that the clock is ahead; remove them if that is None, as it is unknown."""
        if lead == 0:
            return
        for name in ("first_t", "last_t", "first_step_t", "start_t", "last_block_t"):
            t = getattr(self, name)
            setattr(self, name, None if t is None or lead is None else t - lead)
        self.first_ended = self.second_began = None
        for step, found in self.evaluations.items():
            t = None if found.t is None or lead is None else found.t - lead
            self.evaluations[step] = found._replace(t=t)

    def _tell(self, t: float, event: Mapping[str, Any]) -> None:
        """Record an event's time, and count what is wrong with it."""
        before = self._t
        if before is None or self.last_t is None:
            self.first_t = self.last_t = t
        else:
            if event["ev"] == "steps" and seconds_of(event, "seconds") is not None:
                self.last_block_t = t
            if (damage := clock_damage(before, self._outside, t, event)) is not None:
                self.damage[damage] += 1
                self._outside = t  # so that the block's own event is not counted as well
            if t > self.last_t:
                self.last_t = t
        self._t = t
        if before is None or event["ev"] not in WITHIN_BLOCKS:
            self._outside = t

    def _read_start(self, event: Mapping[str, Any]) -> bool:
        self.start = event
        self.start_t = seconds_of(event, "t")
        self.world_size = count_of(event, "world_size", 1)
        self.parameters = count_of(event, "parameters", 1)
        # A training of the user's own may not say its world size.
        return self.world_size is not None or event.get("world_size", "absent") is None

    def _read_resume(self, event: Mapping[str, Any]) -> bool:
        step, ignored = count_of(event, "step", 0), event.get("ignored")
        if step is None:
            return False
        reason = None if ignored is None else printable(str(ignored))
        self.resume = Resume(step, count_of(event, "from_attempt", 1), reason)
        return True

    def _read_steps(self, event: Mapping[str, Any]) -> bool:
        phase = event.get("phase")
        values = {
            **{name: event.get(name) for name in ("step", "n", "seconds", "samples")},
            "phase": phase if phase in PHASES else "",
            "joules": joules_of(event, "joules"),
            **{name: seconds_of(event, name) for name in BLOCK_PARTS},
        }
        try:
            block = msgspec.convert(values, Block)
        except msgspec.ValidationError:
            return False
        self._add_blocks([block], [seconds_of(event, "t")])
        return True

    def _add_lines(self, lines: Sequence[StepsLine]) -> None:
        """Add consecutive events of blocks: nearly all of a log, so without a call for each."""
        self.events += len(lines)
        times = [line.t for line in lines]
        self._add_blocks(lines, times)
        if self._t is None or self.last_t is None or self._t != self._outside or not ticks(self._t, lines):
            for line in lines:
                self._tell(line.t, {"ev": line.ev, "seconds": line.seconds, "left_out_seconds": line.left_out_seconds})
        else:
            self._t = self._outside = self.last_block_t = times[-1]
            self.last_t = max(self.last_t, *times)

    def _add_blocks(self, blocks: Sequence[Block], times: Sequence[float | None]) -> None:
        """times: unix seconds at the end of each block."""
        if len(self.blocks) < 2:
            counted = [(block, t) for block, t in zip(blocks, times, strict=True) if block.phase in PHASES]
            for number, (block, t) in enumerate(counted[:2], start=len(self.blocks)):
                if number == 0 and t is not None:
                    self.first_step_t, self.first_ended = t - block.seconds, (block.end, t)
                elif number == 1 and t is not None:
                    self.second_began = (block.step, t - block.seconds)
        self.blocks += [
            block if block.issue_seconds is block.first_issue_seconds is None else with_possible_issue(block)
            for block in blocks
            if block.phase in PHASES
        ]

    def _read_device(self, event: Mapping[str, Any]) -> bool:
        self.devices.append(event)
        return count_of(event, "step", 0) is not None

    def _read_resources(self, event: Mapping[str, Any]) -> bool:
        if count_of(event, "steps", 0) is None or seconds_of(event, "seconds") is None:
            return False
        self.resources = event
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
        rounds = self.probes[event["probe"], count_of(event, "bytes", 0)]
        number = count_of(event, "round", 0)
        rounds[len(rounds) if number is None else number] = (n, seconds)
        return True

    def _read_probes(self, event: Mapping[str, Any]) -> bool:
        rounds, seconds = count_of(event, "rounds", 0), seconds_of(event, "seconds")
        share, limit = number_of(event, "share"), number_of(event, "limit")
        if rounds is None or seconds is None or share is None or limit is None:
            return False
        skipped = event.get("skipped")
        self.probing = Probing(rounds, seconds, share, limit, None if skipped is None else printable(str(skipped)))
        return True

    def _read_protocol(self, event: Mapping[str, Any]) -> bool:
        stopped, stationary = event.get("stopped"), event.get("stationary")
        if stopped not in STOPPED or stationary not in (True, False, None):
            return False
        widths = number_of(event, "relative_half_width"), number_of(event, "precision")
        self.outcome = Outcome(stopped, *widths, stationary, count_of(event, "warmup_steps", 0))
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

    def _read_workload(self, event: Mapping[str, Any]) -> bool:
        method, step_of = event.get("method"), event.get("step_of")
        if method not in (HOOKS, PROBE, PATTERN):
            return False
        named = printable(step_of) if isinstance(step_of, str) else None
        self.seen = Seen(method, named, count_of(event, "accumulation", 1), count_of(event, "epochs", 0))
        return True

    def _read_fallback(self, event: Mapping[str, Any]) -> bool:
        what = event.get("what")
        if not isinstance(what, str):
            return False
        self.fallbacks.append(printable(what))
        return True

    def _read_ceiling(self, event: Mapping[str, Any]) -> bool:
        self.ceiling = event
        return seconds_of(event, "seconds") is not None

    def _read_trace(self, event: Mapping[str, Any]) -> bool:
        texts = {name: event.get(name) for name in ("file", "profiler", "reason")}
        if any(text is not None and not isinstance(text, str) for text in texts.values()):
            return False
        known = {name: None if text is None else printable(text) for name, text in texts.items()}
        self.trace = {**known, "steps": count_of(event, "steps", 1)}
        if isinstance(parts := event.get("parts"), dict):
            self.trace["parts"] = {name: value for name in TRACED if (value := seconds_of(parts, name)) is not None}
        return True


# At class level: bound methods in each log would form cycles that only the garbage collector frees.
_READERS: Mapping[str, Callable[[RankLog, Mapping[str, Any]], bool]] = {
    "start": RankLog._read_start,
    "resume": RankLog._read_resume,
    "steps": RankLog._read_steps,
    "device": RankLog._read_device,
    "resources": RankLog._read_resources,
    "gradients": RankLog._read_gradients,
    "checkpoint": RankLog._read_checkpoint,
    "fault": RankLog._read_fault,
    "leave": RankLog._read_leave,
    "protocol": RankLog._read_protocol,
    "probe": RankLog._read_probe,
    "probes": RankLog._read_probes,
    "staleness": RankLog._read_staleness,
    "server_back": RankLog._read_server_back,
    "eval": RankLog._read_eval,
    "end": RankLog._read_end,
    "trace": RankLog._read_trace,
    "fallback": RankLog._read_fallback,
    "ceiling": RankLog._read_ceiling,
    "workload": RankLog._read_workload,
}
