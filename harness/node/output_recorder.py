"""Measures the user's own training from its output (`workload.pattern`) and writes the events of its rank."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harness.core.events import EventWriter
from harness.core.measuring.precision import is_known, mean_error
from harness.core.measuring.protocol import FIRST, MEASURE, WARMUP
from harness.core.spec import RunSpec
from harness.core.workload import patterns
from harness.core.workload.patterns import Observed, Reader

# Of the event `start`: what cannot be seen from outside.
UNKNOWN = dict.fromkeys(
    ("world_size", "threads", "device_name", "device_id", "parameters", "gradient_bytes", "train_samples")
)


class OutputRecorder:
    """Rank 0's: turns the lines that match into blocks of steps, and decides when enough was measured.

    Attributes:
        enough: why the training may end: 'precision' or 'limit'; None as long as it must go on.
    """

    def __init__(self, spec: RunSpec, log: Path, start: Mapping[str, Any]) -> None:
        """start: what the supervisor knows of the event `start`."""
        assert spec.workload is not None
        assert spec.workload.pattern is not None
        self._workload, self._measure, self._start = spec.workload, spec.measure, start
        self._text = spec.workload.pattern
        pattern = patterns.parse(self._text, spec.workload.unit)
        # What starts the ranks itself starts one per GPU.
        one_per_node = spec.workload.one_process_per_node and not spec.workload.starts_ranks
        processes = spec.placement.nodes if one_per_node else spec.gpus
        self._reader = Reader(pattern, spec.workload.samples_per_step, spec.gpus, processes)
        self._log = EventWriter(log, 0)
        self._began = time.monotonic()
        self._started = False
        self._block: list[Observed] = []
        self._steps = 0  # done at the end of the last block
        self._warmup_steps = self._measured_steps = 0
        self._seconds: list[float] = []  # per step of each measured block
        self.enough: str | None = None

    def feed(self, data: bytes, stream: int) -> None:
        """Read output that has just arrived. stream: tells stdout from stderr."""
        self._add(self._reader.feed(data, time.monotonic(), stream))

    def finish(self) -> str | None:
        """Write the last events. Returns why nothing was measured, or None."""
        self._add(self._reader.close())
        if not self._measured_steps:
            self._log.close()
            return self._nothing_measured()
        samples = self._steps * self._workload.samples_per_step
        error = mean_error(self._seconds)
        self._log.write(
            "workload",
            method="pattern",
            unit=self._workload.unit,
            step_of=self._text,
            seen=[],
            handed_out=None,
            accumulation=None,
            epochs=None,
        )
        self._log.write(
            "protocol",
            stopped=self.enough or "script ended",
            relative_half_width=None if error is None else error.half_width,
            precision=self._measure.precision,
            warmup_steps=self._warmup_steps,
            stationary=None,
            measured_steps=self._measured_steps,
        )
        self._log.write("end", steps=self._steps, samples_seen=samples, samples=samples, weights_checksum=None)
        self._log.close()
        return None

    def _add(self, found: Iterable[Observed]) -> None:
        if self._reader.matches and not self._started:
            self._started = True
            startup = {"until_first_line": round(time.monotonic() - self._began, 6)}
            self._log.write("start", **self._start, **UNKNOWN, versions={}, startup_seconds=startup)
        for observed in found:
            if self.enough is None:
                self._block.append(observed)
                if self._at_block_end(observed.end):
                    self._end_block()

    def _at_block_end(self, end: int) -> bool:
        warmup = self._measure.warmup_steps
        return not self._steps or end - self._steps >= self._measure.block_steps or self._steps < warmup <= end

    def _end_block(self) -> None:
        measure, block = self._measure, self._block
        n, seconds = sum(each.n for each in block), sum(each.seconds for each in block)
        phase = MEASURE if self._steps >= measure.warmup_steps and self._steps else WARMUP
        if not self._steps and n == 1:
            phase = FIRST
        self._log.write(
            "steps",
            phase=phase,
            step=block[-1].end - n,
            n=n,
            seconds=seconds,
            samples=n * self._workload.samples_per_step,
            loss=block[-1].loss,
        )
        if phase == MEASURE:
            self._measured_steps += n
            self._seconds.append(seconds / n)
        else:
            self._warmup_steps = block[-1].end
        self._steps, self._block = block[-1].end, []
        if not self._workload.stop:
            return
        at_limit = self._steps >= self._warmup_steps + measure.steps
        if measure.precision is not None and is_known(self._seconds, measure.precision, last=at_limit):
            self.enough = "precision"
        elif at_limit:
            self.enough = "limit"

    def _nothing_measured(self) -> str:
        reader, measure = self._reader, self._measure
        last = " | ".join(reader.last_lines) or "nothing"
        if not reader.matches:
            return (
                f"no line of the output matched workload.pattern={self._text}; the last lines were: {last}; correct "
                "the pattern, or have the training print its steps"
            )
        least = measure.warmup_steps + measure.block_steps
        return (
            f"the output showed {self._steps} steps, and none was measured after the warm-up; the last lines were: "
            f"{last}; let the training take at least {least} steps and print them at least every "
            f"{measure.block_steps}, or lower measure.warmup_steps"
        )
