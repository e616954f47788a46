"""trace=true: a few steps of each rank as a trace for Chrome's viewer and Perfetto; trace=nsys: named ranges for nsys.

The traced steps come after everything that is measured, so that tracing changes no figure. A framework's own profiler
is a class `Profiler`, of the form below, in `harness/worker/<framework>/trace.py`. Whatever happens in it, all ranks
take the same steps and the run does not fail: the trace then holds the ranges of the harness alone, and log and report
say why.
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

# A reason stands in one line of the log and of the report.
REASON_CHARACTERS = 300


class Profiler(ABC):
    """A framework's own profiler. Any verb may raise anything: then the trace goes without it.

    name: as users know it, with what is said of it in the report.
    """

    name: str

    @abstractmethod
    def start(self, folder: Path) -> None:
        """folder: empty, for whatever the profiler writes; it goes when the trace is done."""

    @abstractmethod
    def span(self, name: str) -> ContextManager[Any]:
        """A range in the profiler's own trace."""

    @abstractmethod
    def stop(self, path: Path) -> None:
        """Ends profiling, and writes Chrome's trace format, compressed by gzip, to `path`."""


class Recorder:
    """The harness's own ranges, on the rank's monotonic clock."""

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
    """Traces `spec.trace_steps` more steps, all ranks together. step: one training step of the loop's."""
    file = run_files.TRACE.format(rank=rank)
    ours = Recorder(rank)
    folder = attempt_dir / f".trace.rank{rank}"
    profiler, reason = _started(spec.framework, folder)
    # Profilers take their time to start: without this, the first step would show who waits for whom there.
    _align(adapter)
    with profiler_ranges.shown(ours.span if profiler is None else _both(profiler.span, ours.span)):
        for _ in range(spec.trace_steps):
            with profiler_ranges.span("step"):
                step()
        with profiler_ranges.span("fence"):
            adapter.fence()
    if profiler is not None:
        reason = _tried(lambda: profiler.stop(attempt_dir / file), f"{profiler.name} could not end")
    written: Optional[str] = file
    if reason is not None:
        failed = _tried(lambda: ours.write(attempt_dir / file), "no trace could be written")
        written, reason = (file, reason) if failed is None else (None, f"{reason}; {failed}")
        print(f"trace: {reason}", file=sys.stderr, flush=True)
    _remove(folder)
    name = profiler.name if profiler is not None and reason is None else None
    log.write("trace", file=written, steps=spec.trace_steps, profiler=name, reason=reason)
    # Leaves together, as at the end of the loop.
    _align(adapter)


def show_in_nsys(spec: RunSpec, rank: int, log: EventWriter) -> None:
    """Ranges of this process are NVTX's from here on, where there is a library for it."""
    try:
        own = importlib.import_module(f"harness.worker.{spec.framework}.trace")
        profiler_ranges.show(own.nvtx() if hasattr(own, "nvtx") else nvtx_of_library())
        reason = None
    except Exception as error:
        reason = _words("nsys will show no ranges of the harness", error)
        print(f"trace: {reason}", file=sys.stderr, flush=True)
    log.write("trace", file=run_files.NSYS_REPORT.format(rank=rank), steps=None, profiler=NSYS, reason=reason)


def nvtx_of_library() -> profiler_ranges.Span:
    """NVTX by the library that CUDA's toolkits have up to 12. Raises OSError, AttributeError where there is none."""
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
    """Just before the rank ends, which it does at once and without any clean-up (harness/worker/__main__.py): nsys
    saves what it has of the GPU when the CUDA profiler is stopped. Without a driver there is nothing to save."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libcuda.so.1").cuProfilerStop()


def write_gzip(path: Path, content: bytes) -> None:
    # Traces repeat themselves: a higher level is slow, and makes them little smaller.
    with gzip.open(path, "wb", compresslevel=3) as file:
        file.write(content)


def _started(framework: str, folder: Path) -> Tuple[Optional[Profiler], Optional[str]]:
    """(the framework's profiler, None), or (None, why it does not profile)."""
    try:
        folder.mkdir()
        profiler: Profiler = importlib.import_module(f"harness.worker.{framework}.trace").Profiler()
        profiler.start(folder)
        return profiler, None
    except Exception as error:
        return None, _words(f"the profiler of {framework} could not start", error)


def _tried(call: Callable[[], None], what: str) -> Optional[str]:
    """None, or what went wrong."""
    try:
        call()
        return None
    except Exception as error:
        return _words(what, error)


def _words(what: str, error: Exception) -> str:
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
