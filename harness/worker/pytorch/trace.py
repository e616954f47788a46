"""Trace a rank with torch.profiler: host operations and, on a GPU, its kernels, copies and collectives."""

from __future__ import annotations

import contextlib
import gzip
import importlib
from pathlib import Path
from typing import Any, ContextManager, Dict, Iterator

import torch
from torch import profiler

from harness.worker import profiler_ranges
from harness.worker.record import trace

# By name: in a user's script the probe's modules are on the path themselves, and are checked under that name.
TRACE_PARTS = "harness.probe._scaling_probe.trace_parts"


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

    def parts(self, path: Path, steps: int) -> Dict[str, float]:
        with gzip.open(path) as file:
            found: Dict[str, float] = importlib.import_module(TRACE_PARTS).read_parts(
                file, trace.TRACED_STEPS, steps, waits="data"
            )
        return found


def nvtx() -> profiler_ranges.Span:
    """Return NVTX ranges. Raises OSError or AttributeError if neither torch nor the system has NVTX."""
    try:
        torch.cuda.nvtx.mark("harness")
    except RuntimeError:  # CPU build
        return trace.nvtx_of_library()

    @contextlib.contextmanager
    def span(name: str) -> Iterator[None]:
        torch.cuda.nvtx.range_push(name)
        try:
            yield
        finally:
            torch.cuda.nvtx.range_pop()

    return span
