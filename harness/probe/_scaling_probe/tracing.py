"""A trace of a few further steps by PyTorch's profiler, and where their time went."""

from __future__ import annotations

import gzip
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from _scaling_probe.torch_parallel import PROFILER
from _scaling_probe.trace_parts import read_parts

if TYPE_CHECKING:
    from _scaling_probe.recorder import Recorder

MARKER = "scaling probe"
PROFILER_NAME = "torch.profiler"
MOST_SECONDS = 5.0  # of steps


def traced(recorder: Recorder, steps: int, step_seconds: float, limit: float) -> Iterator[None]:
    """Each item is one step of the script. Logs the event `trace`.

    All ranks take the same steps, whatever becomes of their traces.

    Args:
        steps: to be traced.
        step_seconds: equal on all ranks.
        limit: seconds that the steps may take.
    """
    parallel, further = recorder.parallel, recorder.further
    assert further is not None
    (profilers,) = parallel.sum([float(parallel.profiler_seen)])
    if profilers:
        _log(recorder, PROFILER)
        return
    limit = min(limit, MOST_SECONDS)
    if (steps + 1) * step_seconds > limit:
        _log(
            recorder, f"{steps + 1} steps take about {(steps + 1) * step_seconds:.3g} s, and the limit is {limit:.3g} s"
        )
        return
    trace = _Trace(parallel.device.type == "cuda")
    yield  # the first one is slower
    recorder.fence()
    parallel.sum([0.0])
    further.disturbed = False
    trace.mark(True)
    for _ in range(steps):
        yield
    recorder.fence()
    trace.mark(False)
    trace.stop()
    parallel.profiler_seen = False  # it was this one
    if further.disturbed:
        _log(recorder, "an evaluation, a checkpoint or another epoch came between the traced steps")
        return
    settings = recorder.settings
    try:
        file, parts = trace.read(os.path.dirname(settings.events), settings.rank, steps)
    except Exception as error:
        _log(recorder, f"no trace could be read: {type(error).__name__}: {error}"[:300])
        return
    recorder.log.write("trace", file=file, steps=steps, profiler=PROFILER_NAME, reason=None, parts=parts)


class _Trace:
    """A trace that begins now. An error is kept for `read`."""

    def __init__(self, gpu: bool) -> None:
        self._error: Exception | None = None
        profiling = sys.modules["torch"].profiler
        kinds = profiling.ProfilerActivity
        self._profiler = profiling.profile(activities=[kinds.CPU, *([kinds.CUDA] if gpu else [])])
        self._marker = profiling.record_function(MARKER)
        self._do(self._profiler.start)

    def mark(self, begins: bool) -> None:
        self._do(self._marker.__enter__ if begins else lambda: self._marker.__exit__(None, None, None))

    def stop(self) -> None:
        self._do(self._profiler.stop)

    def read(self, folder: str, rank: int, steps: int) -> tuple[str | None, dict[str, float]]:
        """Return the file, if it is kept, and the seconds of each part per step. That of the first rank is kept."""
        if self._error is not None:
            raise self._error
        path = os.path.join(folder, f"trace.rank{rank}.json")
        try:
            self._profiler.export_chrome_trace(path)
            with open(path, "rb") as file:
                parts = read_parts(file, MARKER, steps)
            if rank > 0:
                return None, parts
            with open(path, "rb") as trace, gzip.open(f"{path}.gz", "wb", compresslevel=3) as packed:
                shutil.copyfileobj(trace, packed)
            return os.path.basename(f"{path}.gz"), parts
        finally:
            if os.path.exists(path):
                os.remove(path)

    def _do(self, call: Callable[[], Any]) -> None:
        try:
            if self._error is None:
                call()
        except Exception as error:
            self._error = error


def _log(recorder: Recorder, reason: str) -> None:
    recorder.log.write("trace", file=None, steps=None, profiler=PROFILER_NAME, reason=reason)
