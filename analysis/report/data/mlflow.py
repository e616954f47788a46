"""Exports a study as an MLflow experiment: one MLflow run each, with settings, metrics over steps, warnings, status."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from analysis.base.errors import StudyError
from analysis.base.text import shortened
from analysis.read.run import UNFINISHED
from analysis.report.data.history import ExportedRun
from analysis.report.data.parameters import METRICS, parameters_of

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

RUN_ID, SIGNATURE = "scaling_harness.run_id", "scaling_harness.signature"
# Limits of one call to MLflow.
MOST_METRICS, LONGEST_TEXT = 1000, 4000
PAGE = 1000


class Experiment:
    """A study's experiment in a store, and the runs already in it."""

    def __init__(self, uri: str, name: str) -> None:
        """Raises StudyError if the store cannot be opened."""
        # No telemetry; and MLflow can write a folder without a server (docs/exports.md).
        os.environ.update(MLFLOW_DISABLE_TELEMETRY="true", MLFLOW_ALLOW_FILE_STORE="true")
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        self.refused = MlflowException
        try:
            self.client = MlflowClient(uri)
            found = self.client.get_experiment_by_name(name)
            self.id = found.experiment_id if found else self.client.create_experiment(name)
            self.there = _runs_there(self.client, self.id)
        except (MlflowException, ImportError) as error:
            raise StudyError(f"MLflow cannot open {uri}: {_first_line(error)}") from None

    def write(self, run: ExportedRun) -> bool:
        """Write a run unless an identical one exists; replace a changed one. Return whether it was written. Raises
        StudyError if MLflow rejects it."""
        signature = _signature(run)
        known = self.there.get(run.run_id, {})
        if signature in known:
            return False
        try:
            self._create(run, signature)
            for old in known.values():
                self.client.delete_run(old)
        except self.refused as error:
            raise StudyError(f"MLflow does not take run {run.run_id}: {_first_line(error)}") from None
        return True

    def _create(self, run: ExportedRun, signature: str) -> None:
        from mlflow.entities import Metric, Param, RunTag

        begin, end = _milliseconds(run.row["started"]), _milliseconds(run.row["ended"])
        said = {name: run.row[name] for name in ("status", "marks", "reason", "notes", "oversubscribed", "series")}
        tags = {RUN_ID: run.run_id, "study": run.row["study"], **{k: v for k, v in said.items() if v}}
        created = self.client.create_run(self.id, start_time=begin, run_name=run.run_id)
        run_id = created.info.run_id
        params = [Param(name, shortened(str(value), LONGEST_TEXT)) for name, value in parameters_of(run).items()]
        self.client.log_batch(
            run_id, params=params, tags=[RunTag(name, shortened(text, LONGEST_TEXT)) for name, text in tags.items()]
        )
        metrics = [Metric(name, value, _milliseconds(t) or begin or 0, step) for name, value, step, t in _metrics(run)]
        for first in range(0, len(metrics), MOST_METRICS):
            self.client.log_batch(run_id, metrics=metrics[first : first + MOST_METRICS])
        if run.row["status"] != UNFINISHED:  # otherwise it may still be running, as MLflow calls a run without an end
            self.client.set_terminated(run_id, "FINISHED" if run.completed else "FAILED", end)
        # Last, so that a partially written run lacks it and is replaced.
        self.client.set_tag(run_id, SIGNATURE, signature)


def _runs_there(client: MlflowClient, experiment: str) -> dict[str, dict[str, str]]:
    """Return the runs of earlier exports: by our run id, MLflow's id by signature."""
    found: dict[str, dict[str, str]] = {}
    token = None
    while True:
        page = client.search_runs([experiment], max_results=PAGE, page_token=token)
        for run in page:
            if ours := run.data.tags.get(RUN_ID):
                found.setdefault(ours, {})[run.data.tags.get(SIGNATURE, run.info.run_id)] = run.info.run_id
        token = page.token
        if not token:
            return found


def _metrics(run: ExportedRun) -> Iterator[tuple[str, float, int, float | None]]:
    """Yield (name, value, steps of training, unix seconds)."""
    for block in run.blocks:
        if block.seconds:
            yield "block_samples_per_second", block.samples / block.seconds, block.step, block.t
        if block.loss is not None:
            yield "train_loss", block.loss, block.step, block.t
    for found in run.evaluations:
        yield "evaluation_accuracy", found["accuracy"], found["step"], run.time_of(found)
        if found["loss"] is not None:
            yield "evaluation_loss", found["loss"], found["step"], run.time_of(found)
    for name in METRICS:
        value = run.row[name]
        if value is not None and math.isfinite(value):
            yield name, float(value), 0, run.row["ended"]


def _signature(run: ExportedRun) -> str:
    """Return a hash of everything exported."""
    whole: list[Any] = [dict(run.row), list(_metrics(run))]
    return sha256(json.dumps(whole, sort_keys=True, default=str).encode()).hexdigest()


def _milliseconds(t: float | None) -> int | None:
    return None if t is None else round(1000 * t)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
