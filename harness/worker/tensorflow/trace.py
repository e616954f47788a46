"""Trace a rank with TensorFlow's profiler: the host's threads and, on a GPU, its kernels.

The profiler writes a protocol buffer, xplane.pb, which TensorBoard converts to Chrome's format. This module does the
same conversion: planes are processes, lines are threads.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ContextManager, Dict, Iterator

import tensorflow as tf

from harness.worker.record import trace

FILE = "*.xplane.pb"


class Profiler(trace.Profiler):
    name = "tf.profiler"

    def start(self, folder: Path) -> None:
        """Raises ImportError if this TensorFlow lacks the profiler's file format."""
        from tensorflow.tsl.profiler.protobuf import xplane_pb2

        self.folder, self.format = folder, xplane_pb2
        tf.profiler.experimental.start(str(folder))

    def span(self, name: str) -> ContextManager[Any]:
        traced: ContextManager[Any] = tf.profiler.experimental.Trace(name)
        return traced

    def stop(self, path: Path) -> None:
        """Raises ValueError unless TensorFlow wrote exactly one file."""
        tf.profiler.experimental.stop()
        [written] = self.folder.rglob(FILE)
        space = self.format.XSpace.FromString(written.read_bytes())
        document = {"displayTimeUnit": "ms", "traceEvents": [*_chrome_events(space)]}
        trace.write_gzip(path, json.dumps(document).encode("utf-8"))


def _chrome_events(space: Any) -> Iterator[Dict[str, Any]]:
    for pid, plane in enumerate(space.planes):
        if not plane.lines:
            continue
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": plane.name}}
        for line in plane.lines:
            own = {"pid": pid, "tid": line.id}
            yield {"ph": "M", "name": "thread_name", **own, "args": {"name": line.display_name or line.name}}
            for event in line.events:
                described = plane.event_metadata[event.metadata_id]
                microseconds = line.timestamp_ns / 1e3 + event.offset_ps / 1e6
                yield {
                    "ph": "X",
                    "name": described.display_name or described.name,
                    **own,
                    "ts": microseconds,
                    "dur": event.duration_ps / 1e6,
                }
