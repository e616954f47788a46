"""Trace a rank with mxnet.profiler: operators, memory, and calls of MXNet's interface."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Iterator

import mxnet as mx

from harness.worker.record import trace

FILE = "profile.json"


class Profiler(trace.Profiler):
    name = "mxnet.profiler"

    def start(self, folder: Path) -> None:
        self.file = folder / FILE
        mx.profiler.set_config(profile_all=True, filename=str(self.file))
        self.domain = mx.profiler.Domain("harness")
        mx.profiler.set_state("run")

    @contextlib.contextmanager
    def span(self, name: str) -> Iterator[None]:
        task = self.domain.new_task(name)
        task.start()
        try:
            yield
        finally:
            task.stop()

    def stop(self, path: Path) -> None:
        mx.profiler.set_state("stop")
        mx.profiler.dump()
        trace.write_gzip(path, self.file.read_bytes())
