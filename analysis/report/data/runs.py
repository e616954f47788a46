"""runs.csv and runs.parquet: one row per run, whatever its status; units are in the column names."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from analysis.base.column import COUNT, LOGICAL, REAL, TEXT, Column, table
from analysis.base.frames import frame_of
from analysis.base.text import printable, versions_text
from analysis.base.values import number_of
from analysis.read.row import Run
from analysis.report.data.cells import csv_of_frame
from analysis.tables.pairing import spec_of
from analysis.tables.point import Point
from analysis.tables.throughput import goodput

if TYPE_CHECKING:
    import pandas as pd

    from analysis.read.study import Study
    from analysis.report.findings import Findings

# docs/exports.md shows the same list.
COLUMNS = table(
    Column("study", TEXT, "name of the study"),
    Column("run_id", TEXT, "name of the run's folder in `runs/`"),
    Column("status", TEXT, "completed, failed, unfinished, unreadable, invalid or missing"),
    Column("reason", TEXT, "why the run did not complete"),
    Column("marks", TEXT, "warnings of its point, joined by `;`"),
    Column("notes", TEXT, "further remarks from its logs"),
    Column("oversubscribed", TEXT, "why its ranks shared GPUs or cores; empty if they did not"),
    Column("series", TEXT, "framework, strategy, network, data set, scaling and batch, in words"),
    Column("detail", TEXT, "what distinguishes the series from others with the same name"),
    Column("framework", TEXT, "value of `framework=`"),
    Column("framework_options", TEXT, "options of the framework, as JSON"),
    Column("strategy", TEXT, "value of `strategy=`"),
    Column("strategy_options", TEXT, "options of the framework, as JSON"),
    Column("model", TEXT, "value of `model=`"),
    Column("dataset", TEXT, "value of `dataset=`"),
    Column("precision", TEXT, "fp32, bf16 or fp16"),
    Column("scaling", TEXT, "strong or weak"),
    Column("optimizer", TEXT, "name of the optimiser"),
    Column("base_learning_rate", REAL, "learning rate at `lr_batch` samples per step"),
    Column("cluster", TEXT, "value of `cluster=`"),
    Column("device", TEXT, "cuda or cpu"),
    Column("device_names", TEXT, "names of the GPUs or processors, joined by `;`"),
    Column("communication", TEXT, "library and transport that carried the gradients"),
    Column("environment", TEXT, "framework environment, as the configuration names it"),
    Column("versions", TEXT, "of the framework and its libraries"),
    Column("code_version", TEXT, "version of this program when the run was submitted"),
    Column("fault", TEXT, "injected fault; empty if none"),
    Column("gpus", COUNT, "ranks, one GPU each; CPU ranks if device is cpu"),
    Column("nodes", COUNT, "machines"),
    Column("ranks_per_node", COUNT, "ranks per node"),
    Column("global_batch", COUNT, "samples per step, all ranks together"),
    Column("batch_per_gpu", COUNT, "samples per step per rank"),
    Column("seed", COUNT, "seed of the weights and of the order of samples"),
    Column("repeat", COUNT, "index of the repetition"),
    Column("samples_per_second", REAL, "total throughput of all ranks, samples/s"),
    Column("step_seconds", REAL, "mean time of the timed steps, s"),
    Column("measured_seconds", REAL, "duration of all timed steps, s"),
    Column("measured_steps", COUNT, "timed steps"),
    Column("measured_samples", COUNT, "samples in the timed steps"),
    Column("blocks", COUNT, "timed blocks of steps"),
    Column("outlier_blocks", COUNT, "blocks outside Tukey's fences"),
    Column("stationary", LOGICAL, "whether the step time was stationary when timing began; empty if not tested"),
    Column("drift_fraction", REAL, "change of the step time from the first to the last block / median"),
    Column("drift_probability", REAL, "p value of a Mann-Kendall test for that drift"),
    Column("cached_batch_seconds", REAL, "step time on a batch cached on the device, s"),
    Column("no_sync_seconds", REAL, "time of such a step without synchronisation, s"),
    Column("startup_seconds", REAL, "imports, data, rendezvous and building of the network, s"),
    Column("first_step_seconds", REAL, "from the start of the ranks to the end of the first step, s"),
    Column("first_block_seconds", REAL, "duration of the first step, s"),
    Column("test_accuracy", REAL, "test accuracy at the last evaluation, as a fraction"),
    Column("test_loss", REAL, "test cross-entropy at the last evaluation"),
    Column("test_samples", COUNT, "number of test samples"),
    Column("samples_seen", COUNT, "training samples seen before the last evaluation"),
    Column("train_samples", COUNT, "samples per epoch"),
    Column("parameters", COUNT, "trainable parameters of the network"),
    Column("gradient_bytes", COUNT, "size of all gradients of a rank, B"),
    Column("staleness_mean", REAL, "mean staleness of the gradients in updates, with parameter servers"),
    Column("staleness_max", COUNT, "largest staleness in updates"),
    Column("energy_joules", REAL, "energy of the devices over the timed steps, J"),
    Column("energy_basis", TEXT, "measured, estimated or absent"),
    Column("goodput", REAL, "useful step time / allocated time"),
    Column("useful_seconds", REAL, "useful step time, including warm-up, s"),
    Column("allocated_seconds", REAL, "allocated time, summed over all attempts, s"),
    Column("idle_seconds", REAL, "idle time between attempts, s"),
    Column("checkpoint_seconds", REAL, "time spent saving checkpoints, s"),
    Column("attempts", COUNT, "number of attempts"),
    Column("lost_steps", COUNT, "steps repeated after restarts"),
    Column("continued", LOGICAL, "whether the run was measured in several attempts"),
    Column("failed_rank", COUNT, "which rank failed first"),
    Column("exit_code", COUNT, "exit code of that rank; negative if ended by a signal"),
    Column("unreadable_lines", COUNT, "damaged lines in its logs"),
    Column("job_id", TEXT, "job id of the scheduler"),
    Column("started", REAL, "start of the run, Unix seconds"),
    Column("ended", REAL, "start of the run, Unix seconds"),
)
# Names in analysis.read.run that differ.
NAMES = {
    "measured_seconds": "seconds",
    "measured_steps": "steps",
    "measured_samples": "samples",
    "drift_fraction": "drift",
    "test_accuracy": "accuracy",
}


def runs_table(findings: Findings) -> pd.DataFrame:
    """Return a table with COLUMNS and their types; NA for absent or non-finite values."""
    rows = run_rows(findings.study, findings.points)
    frame = frame_of(rows, {name: column.kind for name, column in COLUMNS.items()})
    reals = [name for name, column in COLUMNS.items() if column.kind == REAL]
    infinite = frame[reals].isin([float("inf"), float("-inf")])
    frame[reals] = frame[reals].mask(infinite)
    return frame


def run_rows(study: Study, points: Sequence[Point]) -> list[dict[str, Any]]:
    """Return the same as dicts with the keys of COLUMNS, in the order of the study's runs; None for absent values."""
    point_of = {run_id: point for point in points for run_id in point.run_ids}
    return [_row(study.name, run, point_of.get(run.run_id)) for run in study.runs]


def runs_csv(table: pd.DataFrame) -> bytes:
    """Format as CSV."""
    return csv_of_frame(table, COLUMNS).encode("utf-8")


def runs_parquet(table: pd.DataFrame) -> bytes:
    """Format as Parquet; the metadata `description` of each field explains it."""
    import pyarrow
    import pyarrow.parquet

    arrow = pyarrow.Table.from_pandas(table, preserve_index=False)
    fields = [field.with_metadata({"description": COLUMNS[field.name].about}) for field in arrow.schema]
    stream = io.BytesIO()
    pyarrow.parquet.write_table(arrow.cast(pyarrow.schema(fields, metadata=arrow.schema.metadata)), stream)
    return stream.getvalue()


def _derived(run: Run) -> dict[str, Any]:
    """Return the values in COLUMNS that are not columns of `analysis.read.run`; None if unknown."""
    spec = spec_of(run.point or "{}")
    optimizer = spec.get("optimizer") or {}
    measured = bool(run.seconds and run.steps)
    energy = run.resources.get("energy") or {}
    last = (run.evaluations or [{}])[-1]
    return {
        "samples_per_second": run.samples_per_second if measured or run.stated_cost else None,
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
    columns = run.columns()
    own = {name: columns[column] for name in COLUMNS if (column := NAMES.get(name, name)) in columns}
    of_point: dict[str, Any] = dict.fromkeys(("series", "detail", "marks"))
    if point is not None:
        of_point = {"series": point.label, "detail": point.detail or None, "marks": ";".join(point.marks) or None}
    return own | _derived(run) | of_point | {"study": study}


def _options(options: Any) -> str | None:
    return json.dumps(options, sort_keys=True) if options else None
