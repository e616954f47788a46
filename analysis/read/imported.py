"""Measurements from elsewhere, as a table: one row is one run of a point, of which only the throughput is known.

Rows become `Run`s without blocks of steps. Nothing is known of how they were measured, so every figure that comes from
them is marked as imported.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.base.constants import IMPORTED
from analysis.base.errors import StudyError
from analysis.base.text import printable, shortened
from analysis.read.imported_columns import (
    AS_IT_IS,
    BATCH,
    BATCH_PER_GPU,
    GPUS,
    GPUS_PER_NODE,
    LEAST,
    MOST,
    MOST_COUNT,
    NODES,
    RUN,
    SECONDS,
    STATUS,
    Reading,
    Table,
    identity_columns,
    named_columns,
)
from analysis.read.imported_files import read_rows
from analysis.read.imported_logs import Logs, is_log_path, read_pattern_logs
from analysis.read.imported_mllog import logs_of
from analysis.read.row import Run
from analysis.read.study import Study
from harness.core.events import COMPLETED, FAILED
from harness.core.run_files import STUDY
from harness.core.spec import STRONG, WEAK
from harness.core.workload.spec import OWN

DONE = ("completed", "finished", "success", "succeeded", "done")


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        line: where it is, in words.
        about: values of the columns that tell series apart.
        nodes, batch: None if not stated. batch: samples per step over all GPUs.
        cost: seconds per sample; None if it did not complete, for `reason`.
    """

    line: str
    run: str
    about: tuple[tuple[str, str], ...]
    gpus: int
    nodes: int | None
    batch: float | None
    cost: float | None
    reason: str | None = None


def is_imported(path: Path, reading: Reading = AS_IT_IS) -> bool:
    """Return whether this is a table or log from elsewhere, and not a study's folder."""
    if path.is_file():
        return True
    try:
        return path.is_dir() and not (path / STUDY).exists() and (bool(reading.pattern) or bool(logs_of(path)))
    except OSError:
        return False


def read_imported(path: Path, reading: Reading = AS_IT_IS) -> Study:
    """Read a table as a study. Raises StudyError with one sentence if it is not one."""
    logs = _logs(path, reading)
    table = named_columns(path, (logs.headers, logs.rows) if logs else read_rows(path), reading)
    about, problems = identity_columns(table, reading)
    problems += logs.problems if logs else []
    rows = [_row(table, index, about, reading) for index in range(len(table.rows))]
    remarks = [*problems, *(logs.remarks if logs else ())]
    if all(row.nodes is None for row in rows):
        remarks.append(
            f"{path.name} has no column nodes: every size is taken to be on one node; --gpus-per-node changes it"
        )
    return Study(
        name=printable(path.stem),
        folder=path.parent,
        created=None,
        invocations=(),
        runs=tuple(_runs(printable(path.stem), table.unit, rows, logs.measured if logs else {})),
        problems=tuple(printable(problem) for problem in problems),
        remarks=tuple(printable(remark) for remark in remarks),
        reread=len(rows),
    )


def _logs(path: Path, reading: Reading) -> Logs | None:
    try:
        return read_pattern_logs(path, reading) if is_log_path(path, reading) else None
    except OSError as error:
        raise StudyError(f"cannot read {path}: {error.strerror}") from None


def _row(table: Table, index: int, about: Sequence[str], reading: Reading) -> Row:
    line = table.lines[index]

    def whole(name: str) -> int | None:
        text = table.value(index, name)
        value = _number(text)
        if not text:
            return None
        if value is None or not 1 <= value <= MOST_COUNT or value != int(value):
            raise table.error(index, f"{table.header(name)} is {_given(text)}; give a whole number from 1 on")
        return int(value)

    def measured(name: str) -> float | None:
        text = table.value(index, name)
        if not text:
            return None
        value = _number(text)
        if value is None or not LEAST <= value <= MOST:
            raise table.error(index, f"{table.header(name)} is {_given(text)}; give a number above 0")
        return value

    gpus = whole(GPUS)
    if gpus is None:
        raise table.error(index, f"{table.header(GPUS)} is empty; give a whole number from 1 on")
    nodes, per_node = whole(NODES), whole(GPUS_PER_NODE) or reading.gpus_per_node
    if nodes is None and per_node is not None:
        nodes = -(-gpus // per_node)
    if nodes is not None and nodes > gpus:
        raise table.error(index, f"{gpus} GPUs on {nodes} nodes; give at most as many nodes as GPUs")
    batch, batch_per_gpu = measured(BATCH), measured(BATCH_PER_GPU)
    if batch is None and batch_per_gpu is None:
        batch, batch_per_gpu = reading.batch, reading.batch_per_gpu
    if batch is None and batch_per_gpu is not None:
        batch = min(batch_per_gpu * gpus, MOST)
    own = tuple((name, shortened(printable(table.value(index, name)), 200)) for name in about)
    run = shortened(printable(table.value(index, RUN)), 100)
    status = table.value(index, STATUS)
    rate = measured(table.rate)
    if status and status.lower() not in DONE:
        return Row(line, run, own, gpus, nodes, batch, None, f"{table.header(STATUS)} is {printable(status)}")
    if rate is None:
        raise table.error(index, f"{table.header(table.rate)} is empty; give a number above 0")
    if table.rate == SECONDS:
        if batch is None:
            raise table.error(index, f"{table.header(BATCH)} is empty; give the samples of a step over all GPUs")
        return Row(line, run, own, gpus, nodes, batch, rate / batch)
    return Row(line, run, own, gpus, nodes, batch, 1 / rate)


def _number(text: str) -> float | None:
    try:
        value = float(text) if "_" not in text else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _given(text: str) -> str:
    return repr(shortened(printable(text), 30))


def _runs(name: str, unit: str, rows: Sequence[Row], measured: Mapping[str, Mapping[str, Any]]) -> list[Run]:
    """The rows as runs; series as `_series` tells them apart. measured: columns of runs, by their line."""
    counts: dict[str, int] = defaultdict(int)
    runs = []
    for row, shared in _series(rows):
        series = {"framework": IMPORTED, "model": name, "unit": unit, "columns": dict(row.about), **shared}
        point = {**series, "gpus": row.gpus, "nodes": row.nodes, "batch": row.batch}
        key = json.dumps(point, sort_keys=True)
        run_id = f"{row.run}, {row.line}" if row.run else row.line
        nodes = row.nodes or 1
        runs.append(
            Run(
                run_id=run_id,
                status=FAILED if row.cost is None else COMPLETED,
                reason=row.reason,
                series=json.dumps(series, sort_keys=True),
                point=key,
                framework=IMPORTED,
                strategy=OWN,
                model=name,
                dataset="",
                precision="",
                scaling=shared["scaling"],
                cluster="",
                device="",
                gpus=row.gpus,
                nodes=nodes,
                ranks_per_node=-(-row.gpus // nodes),
                global_batch=_whole(row.batch),
                batch_per_gpu=None if row.batch is None else _whole(row.batch / row.gpus),
                seed=0,
                repeat=counts[key],
                stderr_tail_json="[]",
                unit=unit,
                samples_per_step=row.batch,
                stated_cost=row.cost,
                **{"measured_blocks": 0, "outlier_blocks": 0, **measured.get(row.line, {})},
            )
        )
        counts[key] += 1
    return runs


def _series(rows: Sequence[Row]) -> list[tuple[Row, Mapping[str, Any]]]:
    """Each row with what its series shares besides the columns: scaling, and the batch that is constant in it.

    Rows with one batch per GPU are a series of weak scaling; if all have one global batch, of strong scaling. Rows
    without a batch are taken to do the same work per GPU.
    """
    alike: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        alike[row.about, row.batch is None].append(row)
    shared: dict[int, Mapping[str, Any]] = {}
    for group in alike.values():
        per_gpu = {row.batch and row.batch / row.gpus for row in group}
        strong = len(per_gpu) > 1 and len({row.batch for row in group}) == 1
        for row in group:
            own = row.batch if strong or row.batch is None else row.batch / row.gpus
            batch = {"global_batch" if strong else "batch_per_gpu": own}
            shared[id(row)] = {"scaling": STRONG if strong else WEAK, **batch}
    return [(row, shared[id(row)]) for row in rows]


def _whole(value: float | None) -> int | None:
    return int(value) if value is not None and value == int(value) else None
