"""runs.csv and runs.parquet: one row per run, whatever became of it; units in the names of the columns."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from analysis.base.frames import frame_of
from analysis.base.text import printable, versions_text
from analysis.base.values import number_of
from analysis.read.row import COLUMNS as RUN_COLUMNS
from analysis.read.row import Run
from analysis.report.data.cells import inert
from analysis.tables.pairing import spec_of
from analysis.tables.point import Point
from analysis.tables.throughput import goodput

if TYPE_CHECKING:
    import pandas as pd

    from analysis.read.study import Study
    from analysis.report.findings import Findings

TEXT, WHOLE, REAL, LOGICAL = "string", "Int64", "Float64", "boolean"
# Name -> (pandas type, what it holds). docs/exports.md shows the same list.
COLUMNS = {
    "study": (TEXT, "name of the study"),
    "run_id": (TEXT, "name of the run's folder in `runs/`"),
    "status": (TEXT, "completed, failed, unfinished, unreadable, invalid or missing"),
    "reason": (TEXT, "why it is not completed"),
    "marks": (TEXT, "what is to be known of its point before figures are used, joined by `;`"),
    "notes": (TEXT, "what else its logs say of it"),
    "oversubscribed": (TEXT, "why its ranks shared GPUs or cores; empty: they did not"),
    "series": (TEXT, "framework, strategy, network, data set, scaling and batch, in words"),
    "detail": (TEXT, "in what the series differs from others of that name"),
    "framework": (TEXT, "as `framework=`"),
    "framework_options": (TEXT, "its options, JSON"),
    "strategy": (TEXT, "as `strategy=`"),
    "strategy_options": (TEXT, "its options, JSON"),
    "model": (TEXT, "as `model=`"),
    "dataset": (TEXT, "as `dataset=`"),
    "precision": (TEXT, "fp32, bf16 or fp16"),
    "scaling": (TEXT, "strong or weak"),
    "optimizer": (TEXT, "name of the optimiser"),
    "base_learning_rate": (REAL, "learning rate at `lr_batch` samples per step"),
    "cluster": (TEXT, "as `cluster=`"),
    "device": (TEXT, "cuda or cpu"),
    "device_names": (TEXT, "of GPUs or processors, joined by `;`"),
    "communication": (TEXT, "what carried the gradients"),
    "environment": (TEXT, "framework environment, as the configuration names it"),
    "versions": (TEXT, "of the framework and its libraries"),
    "code_version": (TEXT, "of this program, when the run was submitted"),
    "fault": (TEXT, "failure on purpose; empty: none"),
    "gpus": (WHOLE, "ranks, one GPU each; CPU ranks where device is cpu"),
    "nodes": (WHOLE, "machines"),
    "ranks_per_node": (WHOLE, "ranks on each"),
    "global_batch": (WHOLE, "samples per step, all ranks together"),
    "batch_per_gpu": (WHOLE, "samples per step of a rank"),
    "seed": (WHOLE, "of weights and order of samples"),
    "repeat": (WHOLE, "number of the repetition"),
    "samples_per_second": (REAL, "throughput of all ranks together, samples/s"),
    "step_seconds": (REAL, "mean of the timed steps, s"),
    "measured_seconds": (REAL, "all timed steps, s"),
    "measured_steps": (WHOLE, "timed steps"),
    "measured_samples": (WHOLE, "samples in them"),
    "blocks": (WHOLE, "timed blocks of steps"),
    "outlier_blocks": (WHOLE, "of these, outside Tukey's fences"),
    "stationary": (LOGICAL, "whether the step time had settled when timing began; empty: not asked"),
    "drift_fraction": (REAL, "change of the step time from first to last block, by the median"),
    "drift_probability": (REAL, "p value of the Mann-Kendall test of it"),
    "cached_batch_seconds": (REAL, "of a step on a batch that stays on the device, s"),
    "no_sync_seconds": (REAL, "of such a step without synchronisation, s"),
    "startup_seconds": (REAL, "imports, data, rendezvous and building of the network, s"),
    "first_step_seconds": (REAL, "from the start of the ranks to the end of the first step, s"),
    "first_block_seconds": (REAL, "of the first step, alone, s"),
    "test_accuracy": (REAL, "fraction of right test samples at the last evaluation"),
    "test_loss": (REAL, "mean cross-entropy of the test samples then"),
    "test_samples": (WHOLE, "test samples scored"),
    "samples_seen": (WHOLE, "training samples seen until then"),
    "train_samples": (WHOLE, "samples of an epoch"),
    "parameters": (WHOLE, "trainable parameters of the network"),
    "gradient_bytes": (WHOLE, "that a rank contributes to an allreduce of all gradients, B"),
    "staleness_mean": (REAL, "updates by which gradients were late, with parameter servers"),
    "staleness_max": (WHOLE, "the most of these"),
    "energy_joules": (REAL, "of the devices in the timed steps, J"),
    "energy_basis": (TEXT, "measured, estimated or absent"),
    "goodput": (REAL, "fraction: seconds of steps that count by allocated seconds"),
    "useful_seconds": (REAL, "of the steps that count, warm-up included, s"),
    "allocated_seconds": (REAL, "from begin to end of every attempt, s"),
    "idle_seconds": (REAL, "between attempts, s"),
    "checkpoint_seconds": (REAL, "saving the state, s"),
    "attempts": (WHOLE, "how many it took"),
    "lost_steps": (WHOLE, "done twice, after a restart"),
    "continued": (LOGICAL, "whether its measurement is of several attempts"),
    "failed_rank": (WHOLE, "which rank failed first"),
    "exit_code": (WHOLE, "of that rank's process; negative: minus the signal"),
    "unreadable_lines": (WHOLE, "damaged lines in its logs"),
    "job_id": (TEXT, "of the scheduler"),
    "started": (REAL, "unix seconds"),
    "ended": (REAL, "unix seconds"),
}
# What analysis.read.run calls it, where that is another name.
NAMES = {
    "measured_seconds": "seconds",
    "measured_steps": "steps",
    "measured_samples": "samples",
    "drift_fraction": "drift",
    "test_accuracy": "accuracy",
}


def runs_table(findings: Findings) -> pd.DataFrame:
    """The columns of COLUMNS, of these types; NA for what is absent or not finite."""
    rows = run_rows(findings.study, findings.points)
    frame = frame_of(rows, {name: kind for name, (kind, _) in COLUMNS.items()})
    reals = [name for name, (kind, _) in COLUMNS.items() if kind == REAL]
    infinite = frame[reals].isin([float("inf"), float("-inf")])
    frame[reals] = frame[reals].mask(infinite)
    return frame


def run_rows(study: Study, points: Sequence[Point]) -> list[dict[str, Any]]:
    """The same as dicts with the keys of COLUMNS, in the order of the study's runs; None for what is absent."""
    point_of = {run_id: point for point in points for run_id in point.run_ids}
    return [_row(study.name, run, point_of.get(run.run_id)) for run in study.runs]


def runs_csv(table: pd.DataFrame) -> bytes:
    """Absent values are empty; a text that a spreadsheet would run begins with an apostrophe."""
    table = table.copy()
    for name, (kind, _) in COLUMNS.items():
        if kind == TEXT:
            table[name] = table[name].map(inert, na_action="ignore")
    return table.to_csv(index=False, lineterminator="\n").encode("utf-8")


def runs_parquet(table: pd.DataFrame) -> bytes:
    """Each column has what it holds as metadata `description` of its field."""
    import pyarrow
    import pyarrow.parquet

    arrow = pyarrow.Table.from_pandas(table, preserve_index=False)
    fields = [field.with_metadata({"description": COLUMNS[field.name][1]}) for field in arrow.schema]
    stream = io.BytesIO()
    pyarrow.parquet.write_table(arrow.cast(pyarrow.schema(fields, metadata=arrow.schema.metadata)), stream)
    return stream.getvalue()


def _derived(run: Run) -> dict[str, Any]:
    """What COLUMNS has of a run beyond the columns of `analysis.read.run`; None where it is not known."""
    spec = spec_of(run.point or "{}")
    optimizer = spec.get("optimizer") or {}
    measured = bool(run.seconds and run.steps)
    energy = run.resources.get("energy") or {}
    last = (run.evaluations or [{}])[-1]
    return {
        "samples_per_second": run.samples_per_second if measured else None,
        "step_seconds": run.step_seconds if measured else None,
        "blocks": run.measured_blocks,
        "test_loss": last.get("loss"),
        "energy_joules": energy.get("joules"),
        "energy_basis": energy.get("basis"),
        "goodput": goodput([run.useful_seconds], [run.allocated_seconds]) if run.completed else None,
        "device_names": ";".join(run.device_names) or None,
        "versions": versions_text([run.versions]) or None,
        "framework_options": _options(spec.get("framework_options")),
        "strategy_options": _options(spec.get("strategy_options")),
        "optimizer": printable(str(optimizer["name"])) if "name" in optimizer else None,
        "base_learning_rate": number_of(optimizer, "lr"),
    }


def _row(study: str, run: Run, point: Point | None) -> dict[str, Any]:
    own = {name: run[column] for name in COLUMNS if (column := NAMES.get(name, name)) in RUN_COLUMNS}
    of_point: dict[str, Any] = dict.fromkeys(("series", "detail", "marks"))
    if point is not None:
        of_point = {"series": point.label, "detail": point.detail or None, "marks": ";".join(point.marks) or None}
    return own | _derived(run) | of_point | {"study": study}


def _options(options: Any) -> str | None:
    return json.dumps(options, sort_keys=True) if options else None
