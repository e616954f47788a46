"""torch.profiler for the trace of a rank: what the host does, and on a GPU its kernels, copies and collectives."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, ContextManager, Iterator

import torch
from torch import profiler

from harness.worker import profiler_ranges
from harness.worker.record import trace


class Profiler(trace.Profiler):
    name = "torch.profiler"

    def start(self, folder: Path) -> None:
        activities = [profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(profiler.ProfilerActivity.CUDA)
        self.profile = profiler.profile(activities=activities)
        self.profile.start()

    def span(self, name: str) -> ContextManager[Any]:
        return profiler.record_function(name)

    def stop(self, path: Path) -> None:
        self.profile.stop()
        self.profile.export_chrome_trace(str(path))


def nvtx() -> profiler_ranges.Span:
    """Raises OSError, AttributeError where torch has no NVTX, nor the machine."""
    try:
        torch.cuda.nvtx.mark("harness")
    except RuntimeError:  # a build for the CPU
        return trace.nvtx_of_library()

    @contextlib.contextmanager
    def span(name: str) -> Iterator[None]:
        torch.cuda.nvtx.range_push(name)
        try:
            yield
        finally:
            torch.cuda.nvtx.range_pop()

    return span
