"""Record resources before and after each block of steps, outside the timed sections.

`device` events have the device's state at the end of a block; the `resources` event, one per rank, what the rank used
(harness/schemas/events.schema.json; docs/recording.md).
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional

from harness.core.events import EventWriter
from harness.worker.adapter import Adapter
from harness.worker.record import counters, energy, nccl, nvml
from harness.worker.record.counters import Counts

# Smallest interval between device events: querying the driver may take some milliseconds.
DEVICE_SECONDS = 5.0
MEASURE = "measure"
SAMPLED = "NVML, the most of the whole GPU that was in use at the ends of blocks, trial workspaces still held included"


class Recorder:
    """Record nothing: measure.record=false."""

    def begin(self) -> None:
        """Called before a block of steps."""

    def end(self, phase: str, step: int, n: int, seconds: float) -> None:
        """Called after a block of n steps that took `seconds`, with `step` optimiser steps done; immediately after the
        fence, so that the driver's latest values are those of the steps."""

    def finish(self, adapter: Adapter) -> None:
        """Called after the last training step."""


class Readings(NamedTuple):
    """Values of cumulative counters."""

    reads: Counts
    processor_seconds: float
    network: Counts
    processors: energy.Counters


class Recording(Recorder):
    """Records one rank."""

    def __init__(self, log: EventWriter, start: Mapping[str, Any], nccl_log: Optional[Path] = None) -> None:
        """start: the fields of the start event. nccl_log: NCCL's log, if requested."""
        self.log, self.nccl_log = log, nccl_log
        self.cuda = start["device"] == "cuda"
        self.read_device = _device(self.cuda, start["device_id"])
        # One rank reads the counters of the whole machine.
        first = start["local_rank"] == 0
        self.network = counters.Network() if first else None
        # Without a GPU, the steps' joules are those of the processors.
        self.processors = energy.find("cpu", None) if first and self.cuda else energy.Meter()
        self.steps, self.seconds, self.processor_seconds = 0, 0.0, 0.0
        self.sent_and_received: Optional[Counts] = None
        self.read_bytes: Optional[Counts] = None
        self.processors_joules: Optional[float] = 0.0 if self.processors.of else None
        self.memory_used_bytes = 0
        self.device_read_at: Optional[float] = None
        self.measured = False

    def begin(self) -> None:
        network = self.network.read() if self.network else {}
        joules = self.processors.counters()
        # Read these last, to exclude the other readings' own cost.
        self.before = Readings(counters.reads(), counters.processor_seconds(), network, joules)

    def end(self, phase: str, step: int, n: int, seconds: float) -> None:
        before, reads, computed = self.before, counters.reads(), counters.processor_seconds()
        network = self.network.read() if self.network else {}
        joules = self.processors.joules_since(before.processors)
        self._device_event(phase, step)
        if phase != MEASURE:
            return
        self.sent_and_received = _add_counts(self.sent_and_received, counters.difference(before.network, network))
        self.read_bytes = _add_counts(self.read_bytes, counters.difference(before.reads, reads))
        known = joules is not None and self.processors_joules is not None
        self.processors_joules = self.processors_joules + joules if known else None  # type: ignore[operator]
        self.processor_seconds += computed - before.processor_seconds
        self.steps, self.seconds = self.steps + n, self.seconds + seconds

    def finish(self, adapter: Adapter) -> None:
        self.log.write(
            "resources",
            steps=self.steps,
            seconds=self.seconds,
            processor_seconds=self.processor_seconds,
            **counters.peak_bytes(),
            **self._device_memory(adapter),
            **{name: (self.read_bytes or {}).get(name) for name in counters.READS.values()},
            network_bytes=self.sent_and_received if self.network else None,
            processors_joules=self.processors_joules,
            nccl=nccl.read_log(self.nccl_log) if self.nccl_log else None,
        )

    def _device_event(self, phase: str, step: int) -> None:
        """Log a device event at most every DEVICE_SECONDS, and after the first measured block."""
        now = time.monotonic()
        first = phase == MEASURE and not self.measured
        self.measured = self.measured or first
        if self.read_device is None or not (
            first or self.device_read_at is None or now >= self.device_read_at + DEVICE_SECONDS
        ):
            return
        self.device_read_at = now
        state = self.read_device()
        self.memory_used_bytes = max(self.memory_used_bytes, state.get("memory_used_bytes") or 0)
        self.log.write("device", step=step, source="nvml" if self.cuda else "sysfs", **state)

    def _device_memory(self, adapter: Adapter) -> Dict[str, Any]:
        if not self.cuda:
            none = {"device_peak_bytes": None, "device_reserved_peak_bytes": None}
            return {**none, "device_peak_source": "none: the rank has no device with memory of its own"}
        told = adapter.device_memory()
        if told["device_peak_bytes"] is None and self.memory_used_bytes:
            return {**told, "device_peak_bytes": self.memory_used_bytes, "device_peak_source": SAMPLED}
        return told


def _device(cuda: bool, device_id: Optional[str]) -> Optional[Callable[[], Dict[str, Any]]]:
    """Return the function that reads the device's state, or None."""
    if cuda:
        gpu = nvml.find(device_id)
        return gpu.state if gpu else None
    processors = counters.Processors()
    return processors.state if processors.known else None


def _add_counts(total: Optional[Counts], more: Counts) -> Counts:
    """Add the counters that every block had."""
    return more if total is None else {name: n + more[name] for name, n in total.items() if name in more}
