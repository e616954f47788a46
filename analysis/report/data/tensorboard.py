"""Exports a run as a TensorBoard event file: loss, accuracy and throughput over steps, and its settings (hparams)."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from analysis.base.errors import StudyError
from analysis.report.data.history import ExportedRun
from analysis.report.data.parameters import METRICS, parameters_of

# Always the same, so that an export replaces the previous one. TensorBoard looks for "tfevents" in names.
NAME = "events.out.tfevents.0.scaling-harness"


def write_tensorboard(run: ExportedRun, out: Path) -> None:
    """Write or overwrite <out>/<run id>/NAME. Raises StudyError if it cannot be written."""
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.summary import hparams, scalar

    folder = out / run.folder_name
    metrics = {name: float(run.row[name]) for name in METRICS if _finite(run.row[name])}
    experiment, start, end = hparams(_hparams(run), {f"run/{name}": None for name in metrics})
    if not run.completed:
        _failed(end)
    begin = run.row["started"] or 0.0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".export.", dir=folder) as temporary:
            writer = EventsWriter(str(Path(temporary) / "events"))
            for summary in (experiment, start):
                writer.write_event(Event(wall_time=begin, summary=summary))
            for tag, value, step, t in _curves(run):
                writer.write_event(Event(wall_time=t or begin, step=step, summary=scalar(tag, value)))
            last = run.row["ended"] or begin
            for name, value in metrics.items():
                writer.write_event(Event(wall_time=last, summary=scalar(f"run/{name}", value)))
            writer.write_event(Event(wall_time=last, summary=end))
            writer.close()
            (written,) = Path(temporary).iterdir()
            shutil.move(written, folder / NAME)
    except OSError as error:
        raise StudyError(f"cannot write to {folder} ({error.strerror}): choose another folder with out=") from None


def _hparams(run: ExportedRun) -> Mapping[str, str | float]:
    """Return settings, with warnings and reasons so that TensorBoard's table shows them beside the figures."""
    said = {name: run.row[name] or "none" for name in ("status", "marks", "reason")}
    return {**parameters_of(run), **said}


def _curves(run: ExportedRun) -> Iterator[tuple[str, float, int, float | None]]:
    """Yield (tag, value, steps of training, unix seconds)."""
    for block in run.blocks:
        if block.seconds:
            yield "throughput/samples_per_second", block.samples / block.seconds, block.step, block.t
            yield "throughput/step_seconds", block.seconds / block.steps, block.step, block.t
        if block.loss is not None:
            yield "loss/train", block.loss, block.step, block.t
    for found in run.evaluations:
        yield "accuracy/test", found["accuracy"], found["step"], run.time_of(found)
        if found["loss"] is not None:
            yield "loss/test", found["loss"], found["step"], run.time_of(found)


def _failed(summary: Any) -> None:
    """Change a session's end summary to a failure; tensorboardX supports only success."""
    from tensorboardX.proto.api_pb2 import Status
    from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

    told = summary.value[0].metadata.plugin_data
    data = HParamsPluginData.FromString(told.content)
    data.session_end_info.status = Status.Value("STATUS_FAILURE")
    told.content = data.SerializeToString()


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)
