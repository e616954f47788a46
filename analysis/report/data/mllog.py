"""Exports a run as MLPerf log lines (https://github.com/mlcommons/logging) for its tools. Not an MLPerf submission.

Keys are from mlperf_logging.mllog.constants where one fits; throughput and training loss are `tracked_stats`, as in
submissions to MLPerf Training.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analysis.base.files import write_file
from analysis.read.study import Study
from analysis.report.data.history import ExportedRun
from harness.core.serialization import from_plain
from harness.core.spec import OptimizerSpec

START, STOP, POINT = "INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME"
SUCCESS, ABORTED = "success", "aborted"
HEADER = (
    "# Not an MLPerf result and no submission: benchmark, model and rules are this study's own, nobody reviewed it,\n"
    "# and status 'success' means that the run was completed, not that it reached a target.\n"
)


def write_mllog(study: Study, run: ExportedRun, out: Path) -> None:
    """Write or overwrite <out>/<run id>.log. Raises StudyError if it cannot be written."""
    write_file(out / f"{run.folder_name}.log", (HEADER + "".join(_lines(study, run))).encode("ascii"))


def _lines(study: Study, run: ExportedRun) -> list[str]:
    log = _Log(run.row["started"] or study.created or 0.0, {"marks": run.marks} if run.marks else {})
    row = run.row
    benchmark = None if row["model"] is None else f"{row['model']} on {row['dataset']}"
    log.add("submission_benchmark", benchmark, note="not an MLPerf result", study=study.name, run_id=run.run_id)
    log.add("submission_status", "research")
    log.add("submission_platform", row["device_names"], gpus=row["gpus"], nodes=row["nodes"], device=row["device"])
    log.add("init_start", event=START)
    for key, value, metadata in _settings(run):
        log.add(key, value, **metadata)
    if row["startup_seconds"] is not None and row["started"] is not None:
        log.t = row["started"] + row["startup_seconds"]
    log.add("init_stop", event=STOP)
    log.add("run_start", event=START)
    evaluations = list(run.evaluations)
    samples = 0
    for block in run.blocks:
        while evaluations and evaluations[0]["step"] < block.step:
            log.evaluation(run, evaluations.pop(0))
        samples += block.samples
        log.at(block.t)
        stats = {"throughput": block.samples / block.seconds if block.seconds else None, "train_loss": block.loss}
        known = {name: value for name, value in stats.items() if value is not None}
        log.figure("tracked_stats", known, step_num=block.step, samples_count=samples)
    for evaluation in evaluations:
        log.evaluation(run, evaluation)
    log.at(row["ended"])
    log.figure(
        "run_stop",
        None,
        event=STOP,
        status=SUCCESS if run.completed else ABORTED,
        run_status=row["status"],
        reason=row["reason"],
        samples_count=samples,
        throughput=row["samples_per_second"],
    )
    return log.lines


def _settings(run: ExportedRun) -> list[tuple[str, Any, dict[str, Any]]]:
    row = run.row
    found: list[tuple[str, Any, dict[str, Any]]] = [
        ("seed", row["seed"], {"repeat": row["repeat"]}),
        ("global_batch_size", row["global_batch"], {"batch_per_gpu": row["batch_per_gpu"], "scaling": row["scaling"]}),
        ("train_samples", row["train_samples"], {}),
        ("eval_samples", row["test_samples"], {}),
    ]
    found += _optimizer(run)
    how = {name: row[name] for name in ("framework", "framework_options", "strategy", "strategy_options", "versions")}
    found.append(("config_filename", "spec.json", {**how, "precision": row["precision"], "cluster": row["cluster"]}))
    return [(key, value, metadata) for key, value, metadata in found if value is not None]


def _optimizer(run: ExportedRun) -> list[tuple[str, Any, dict[str, Any]]]:
    """Return the optimiser's lines. opt_base_learning_rate is, as MLPerf defines it, scaled to the global batch."""
    try:
        optimizer = from_plain(OptimizerSpec, run.spec["optimizer"])
        peak = float(optimizer.scaled(run.row["global_batch"]))
    except (KeyError, ValueError, TypeError, ArithmeticError):  # values from a file may be anything
        return []
    rule = {"lr": optimizer.lr, "lr_rule": optimizer.lr_rule, "lr_batch": optimizer.lr_batch}
    return [
        ("opt_name", optimizer.name, {"momentum": optimizer.momentum, "nesterov": optimizer.nesterov}),
        ("opt_base_learning_rate", peak, rule),
        ("opt_learning_rate_warmup_steps", optimizer.warmup_steps, {}),
        ("opt_weight_decay", optimizer.weight_decay, {}),
    ]


class _Log:
    """Lines in time order. t: unix seconds of the last one, used for lines without their own time."""

    def __init__(self, t: float, marks: Mapping[str, Any]) -> None:
        self.t = t
        self.marks = marks
        self.lines: list[str] = []

    def at(self, t: float | None) -> None:
        if t is not None and math.isfinite(t):
            self.t = max(self.t, t)

    def figure(self, key: str, value: Any, event: str = POINT, **metadata: Any) -> None:
        """Add a line with the warnings of the run's point."""
        self.add(key, value, event, **metadata, **self.marks)

    def evaluation(self, run: ExportedRun, found: Mapping[str, Any]) -> None:
        where = {"step_num": found["step"], "samples_count": found["samples"]}
        self.at(run.time_of(found))
        epochs = found["samples"] / run.row["train_samples"] if run.row["train_samples"] else None
        self.figure("eval_accuracy", found["accuracy"], **where, epoch_num=epochs, loss=found["loss"])

    def add(self, key: str, value: Any = None, event: str = POINT, **metadata: Any) -> None:
        """Add a line; None values in the metadata are omitted."""
        line = {
            "namespace": "",
            "time_ms": round(1000 * self.t),
            "event_type": event,
            "key": key,
            "value": value,
            "metadata": {name: value for name, value in metadata.items() if value is not None},
        }
        self.lines.append(f":::MLLOG {json.dumps(line, allow_nan=False)}\n")
