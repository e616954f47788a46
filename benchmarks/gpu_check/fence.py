"""A block's clock, host seconds between two fences, compared with CUDA events around its kernels; and its issue time.

A fence that does not wait would give far too short times, an expensive one too long. Issue time is the share of a
block's time that the host needs to submit the work. For the first step, which meets an empty queue, it is near 1 or
above if the run is limited by the host, and far below if limited by the GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gpu_check import runs
from benchmarks.gpu_check.figures import median
from benchmarks.gpu_check.sections import Ask, Report
from harness.worker.adapter import Adapter
from harness.worker.timing import timed

BLOCKS, STEPS = 30, 20
# Relative cost of starting the first kernel and learning of the last, for blocks of tens of milliseconds.
BOUND = 0.02


def run(ask: Ask, report: Report) -> None:
    cases = [("resnet20", 32, 128, STEPS), ("resnet50", 224, 64, 5)]
    if ask.reduced:
        cases = [("resnet20", 8, 8, 2)]
    for model, size, batch, steps in cases:
        data = runs.images(size, samples=256)
        with runs.adapter_of(runs.spec_of(ask, model, data, batch), ask) as adapter:
            blocks(ask, report, f"{model} batch {batch}", adapter, steps)


def blocks(ask: Ask, report: Report, name: str, adapter: Adapter, steps: int) -> None:
    timed(adapter, adapter.step, 5)
    apart, issued, first, milliseconds = [], [], [], []
    end = time.monotonic() + ask.seconds_left / 2
    for _ in range(3 if ask.reduced else BLOCKS):
        begin, last = (mark(ask) for _ in range(2))
        timing = timed(adapter, marked(adapter.step, steps, begin, last), steps)
        inside = begin.elapsed_time(last) / 1e3
        apart.append(timing.seconds / inside - 1)
        issued.append(timing.issue_seconds / timing.seconds)
        first.append(timing.first_issue_seconds / (timing.seconds / steps))
        milliseconds.append(1e3 * timing.seconds)
        if time.monotonic() > end and len(apart) >= 6:
            break
    report(median(f"{name}, block by the host's clock / by CUDA events - 1", apart, bound=ask.bound(f"≤ {BOUND:g}")))
    # Never shorter than the events inside, except for the clocks' resolution.
    report(median(f"{name}, by CUDA events / by the host's clock - 1", [-a for a in apart], bound="≤ 0.001"))
    report(median(f"{name}, time to issue a block / block", issued, bound="≤ 1"))
    report(median(f"{name}, time to issue its first step / step", first))
    report(median(f"{name}, block of {steps} steps", milliseconds, "ms"))


def marked(step: Callable[[], None], steps: int, begin: Any, last: Any) -> Callable[[], None]:
    """Wrap `step` to record an event before the first of `steps` calls and after the last."""
    left = iter(range(steps - 1, -1, -1))

    def one() -> None:
        number = next(left)
        if number == steps - 1:
            begin.record()
        step()
        if number == 0:
            last.record()

    return one


class HostMark:
    """Replaces a CUDA event without a GPU."""

    def record(self) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, other: HostMark) -> float:
        return 1e3 * (other.at - self.at)


def mark(ask: Ask) -> Any:
    return HostMark() if ask.reduced else torch.cuda.Event(enable_timing=True)
