"""Traces of a few steps: trace=true for Chrome's viewer and Perfetto; trace=nsys for named ranges in nsys.

Traced steps follow everything that is measured, so that tracing affects no result. A framework's profiler is a subclass
`Profiler` in `harness/worker/<framework>/trace.py`. If it fails, all ranks still take the same steps and the run
continues: the trace has the harness's ranges only, and log and report give the reason.
"""

from __future__ import annotations

import contextlib
import ctypes
import gzip
import importlib
import json
import os
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Optional, Tuple

from harness.core import run_files
from harness.core.events import EventWriter
from harness.core.spec import NSYS, RunSpec
from harness.worker import profiler_ranges
from harness.worker.adapter import ALIGN_BYTES, Adapter

# The range around all traced steps and the fence that waits for them.
TRACED_STEPS = "traced steps"
# A reason is one line of the log and of the report.
REASON_CHARACTERS = 300


class Profiler(ABC):
    """A framework's profiler. If a method raises, the trace does without it.

    name: shown to users in the report.
    """

    name: str

    @abstractmethod
    def start(self, folder: Path) -> None:
        """folder: an empty folder for the profiler's files, removed after tracing."""

    @abstractmethod
    def span(self, name: str) -> ContextManager[Any]:
        """Return a range in the profiler's trace."""

    @abstractmethod
    def stop(self, path: Path) -> None:
        """Stop profiling and write Chrome's trace format, gzipped, to `path`."""

    def parts(self, path: Path, steps: int) -> Dict[str, float]:
        """Return the seconds per step of each part (docs/breakdown.md) of so many steps, which lie in the range
        TRACED_STEPS of the trace at `path`. For profilers of adapters with `trace_has_parts` only."""
        raise NotImplementedError


class Recorder:
    """The harness's ranges, on the rank's monotonic clock."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.events: List[Dict[str, Any]] = []

    @contextlib.contextmanager
    def span(self, name: str) -> Iterator[None]:
        start = time.perf_counter_ns()
        try:
            yield
        finally:
            microseconds = (time.perf_counter_ns() - start) / 1000
            event = {"name": name, "cat": "harness", "ph": "X", "ts": start / 1000, "dur": microseconds}
            self.events.append({**event, "pid": os.getpid(), "tid": 0})

    def write(self, path: Path) -> None:
        name = {"name": "process_name", "ph": "M", "pid": os.getpid(), "args": {"name": f"rank {self.rank}"}}
        write_gzip(path, json.dumps({"displayTimeUnit": "ms", "traceEvents": [name, *self.events]}).encode("utf-8"))


def take(
    spec: RunSpec, adapter: Adapter, step: Callable[[], None], rank: int, attempt_dir: Path, log: EventWriter
) -> None:
    """Trace `spec.trace_steps` more steps on all ranks. step: the loop's training step."""
    file = run_files.TRACE.format(rank=rank)
    ours = Recorder(rank)
    folder = attempt_dir / f".trace.rank{rank}"
    profiler, reason = _start_profiler(spec.framework, folder)
    # Profilers take different times to start; otherwise the first step would include waiting for the slowest.
    _align(adapter)
    shown = ours.span if profiler is None else _both(profiler.span, ours.span)
    with profiler_ranges.shown(shown), profiler_ranges.span(TRACED_STEPS):
        for _ in range(spec.trace_steps):
            with profiler_ranges.span("step"):
                step()
        with profiler_ranges.span("fence"):
            adapter.fence()
    if profiler is not None:
        reason = _try(lambda: profiler.stop(attempt_dir / file), f"{profiler.name} could not end")
    written: Optional[str] = file
    if reason is not None:
        failed = _try(lambda: ours.write(attempt_dir / file), "no trace could be written")
        written, reason = (file, reason) if failed is None else (None, f"{reason}; {failed}")
        print(f"trace: {reason}", file=sys.stderr, flush=True)
    _remove(folder)
    name: Optional[str] = None
    seen: Dict[str, Any] = {}
    if profiler is not None and reason is None:
        name = profiler.name
        if adapter.trace_has_parts:
            path, steps = attempt_dir / file, spec.trace_steps
            reason = _try(lambda: seen.update(parts=profiler.parts(path, steps)), "its parts are not known")
    log.write("trace", file=written, steps=spec.trace_steps, profiler=name, reason=reason, **seen)
    # Exit together, as at the end of the loop.
    _align(adapter)


def show_in_nsys(spec: RunSpec, rank: int, log: EventWriter) -> None:
    """Show this process's ranges as NVTX ranges from now on, if a library is available."""
    try:
        own = importlib.import_module(f"harness.worker.{spec.framework}.trace")
        profiler_ranges.show(own.nvtx() if hasattr(own, "nvtx") else nvtx_of_library())
        reason = None
    except Exception as error:
        reason = _reason("nsys will show no ranges of the harness", error)
        print(f"trace: {reason}", file=sys.stderr, flush=True)
    log.write("trace", file=run_files.NSYS_REPORT.format(rank=rank), steps=None, profiler=NSYS, reason=reason)


def nvtx_of_library() -> profiler_ranges.Span:
    """Return NVTX ranges by the library in CUDA toolkits up to 12. Raises OSError or AttributeError without it."""
    library = ctypes.CDLL("libnvToolsExt.so.1")
    push, pop = library.nvtxRangePushA, library.nvtxRangePop

    @contextlib.contextmanager
    def span(name: str) -> Iterator[None]:
        push(name.encode("utf-8"))
        try:
            yield
        finally:
            pop()

    return span


def flush_for_nsys() -> None:
    """Stop the CUDA profiler so that nsys saves its GPU data; call just before the rank exits without clean-up
    (harness/worker/rank.py). A no-op without a driver."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libcuda.so.1").cuProfilerStop()


def write_gzip(path: Path, content: bytes) -> None:
    # Traces are repetitive: higher levels are slow and save little.
    with gzip.open(path, "wb", compresslevel=3) as file:
        file.write(content)


def _start_profiler(framework: str, folder: Path) -> Tuple[Optional[Profiler], Optional[str]]:
    """Return (the framework's profiler, None), or (None, why it cannot profile)."""
    try:
        folder.mkdir()
        profiler: Profiler = importlib.import_module(f"harness.worker.{framework}.trace").Profiler()
        profiler.start(folder)
        return profiler, None
    except Exception as error:
        return None, _reason(f"the profiler of {framework} could not start", error)


def _try(call: Callable[[], None], what: str) -> Optional[str]:
    """Return None, or the error as a sentence."""
    try:
        call()
        return None
    except Exception as error:
        return _reason(what, error)


def _reason(what: str, error: Exception) -> str:
    said = " ".join(str(error).split()) or type(error).__name__
    return f"{what}: {said}"[:REASON_CHARACTERS]


def _both(outer: profiler_ranges.Span, inner: profiler_ranges.Span) -> profiler_ranges.Span:
    @contextlib.contextmanager
    def span(name: str) -> Iterator[None]:
        with outer(name), inner(name):
            yield

    return span


def _align(adapter: Adapter) -> None:
    adapter.allreduce(ALIGN_BYTES)
    adapter.fence()


def _remove(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        with contextlib.suppress(OSError):
            path.rmdir() if path.is_dir() else path.unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()
