"""Trace a rank with jax.profiler: the host's threads and, on a GPU, its kernels."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, ContextManager

import jax

from harness.worker.record import trace

FILE = "perfetto_trace.json.gz"


class Profiler(trace.Profiler):
    name = "jax.profiler"

    def start(self, folder: Path) -> None:
        self.folder = folder
        jax.profiler.start_trace(str(folder), create_perfetto_trace=True)

    def span(self, name: str) -> ContextManager[Any]:
        return jax.profiler.TraceAnnotation(name)

    def stop(self, path: Path) -> None:
        """Raises ValueError unless JAX wrote exactly one file."""
        jax.profiler.stop_trace()
        [written] = self.folder.rglob(FILE)
        shutil.copyfile(written, path)
