"""Reads series from a table of published or own measurements, one per row. Columns not in COLUMNS are ignored."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from analysis.base.errors import StudyError
from analysis.base.text import listed, printable, shortened
from analysis.scaling.series import RateSeries, Size
from harness.core.spec import STRONG, WEAK

ABOUT = ("source", "system", "gpus_per_node", "framework", "model", "precision")
COLUMNS = (*ABOUT, "batch_per_gpu", "data", "nodes", "gpus", "samples_per_second")
MOST_NAMED = 5


@dataclass(frozen=True)
class Row:
    line: int
    about: tuple[str, ...]  # values of ABOUT, and of `data`
    batch_per_gpu: int | None  # None: not stated
    size: Size
    rate: float  # samples per second


@dataclass(frozen=True)
class MeasurementTable:
    """remarks: rows that are in no series, with reasons."""

    series: tuple[RateSeries, ...]
    rows: int
    remarks: tuple[str, ...]


def read_table(path: Path) -> MeasurementTable:
    """Read the series of a CSV file. Raises StudyError if it cannot be read or has no usable row."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise StudyError(
                    f"{path}: no column {listed(missing, 'and')} in its first line; the columns are "
                    f"{', '.join(COLUMNS)}, one measurement a line"
                )
            lines = [(reader.line_num, line) for line in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise StudyError(f"{path} cannot be read: {reason}; give a CSV file in UTF-8") from None
    rows, left_out = [], []
    for number, line in lines:
        try:
            rows.append(_row(number, line))
        except ValueError as error:
            left_out.append(f"line {number}: {error}")
    if not rows:
        why = f": {left_out[0]}" if left_out else ", only its first line"
        raise StudyError(f"{path} has no measurement{why}; nothing can be concluded from it")
    remarks = []
    if left_out:
        named = "; ".join(left_out[:MOST_NAMED]) + ("; …" if len(left_out) > MOST_NAMED else "")
        remarks.append(f"{len(left_out)} of {len(lines)} lines are left out: {named}")
    return MeasurementTable(tuple(_series(rows)), len(rows), tuple(remarks))


def first_series(table: MeasurementTable, most: int) -> MeasurementTable:
    """Keep at most this many series, with a remark if some are left out."""
    if len(table.series) <= most:
        return table
    remark = f"{len(table.series):,} series: the first {most:,} of the file are tried; cut the file to try others"
    return MeasurementTable(table.series[:most], table.rows, (*table.remarks, remark))


def _row(number: int, line: Mapping[str, str | None]) -> Row:
    about = tuple(printable((line[name] or "").strip()) for name in (*ABOUT, "data"))
    gpus, nodes = (_whole(name, line[name]) for name in ("gpus", "nodes"))
    per_node, batch = (_stated(name, line[name]) for name in ("gpus_per_node", "batch_per_gpu"))
    if nodes > gpus:
        raise ValueError(f"{gpus} GPUs on {nodes} nodes")
    if per_node is not None and gpus > nodes * per_node:
        raise ValueError(f"{gpus} GPUs on {nodes} nodes of {per_node}")
    text = (line["samples_per_second"] or "").strip()
    try:
        rate = float(text)
    except ValueError:
        raise ValueError(f"samples_per_second is {_given(text)}") from None
    if not (math.isfinite(rate) and rate > 0):
        raise ValueError(f"samples_per_second is {_given(text)}; it is to be positive")
    return Row(number, about, batch, Size(gpus, nodes), rate)


def _stated(name: str, text: str | None) -> int | None:
    """Parse a whole number; None for an empty column."""
    return _whole(name, text) if text and text.strip() else None


def _whole(name: str, text: str | None) -> int:
    try:
        value = float((text or "").strip())  # some programs write a whole number as 8.0
    except ValueError:
        value = 0.0
    if not (0 < value < 1e9 and value.is_integer()):
        raise ValueError(f"{name} is {_given(text)}; it is to be a whole number from 1 on")
    return int(value)


def _given(text: str | None) -> str:
    return repr(shortened(printable(text.strip()), 30)) if text and text.strip() else "empty"


def _series(rows: Iterable[Row]) -> list[RateSeries]:
    """Group rows that differ only in GPUs and nodes. If their batch per GPU differs, they are one strong-scaling series
    if they share the global batch and no batch per GPU has two sizes; else one series per batch."""
    alike: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        alike[row.about].append(row)
    found = []
    for about, group in alike.items():
        by_batch: dict[int | None, list[Row]] = defaultdict(list)
        for row in group:
            by_batch[row.batch_per_gpu].append(row)
        global_batches = {row.batch_per_gpu and row.batch_per_gpu * row.size.gpus for row in group}
        single = all(len({row.size for row in own}) == 1 for own in by_batch.values())
        if len(by_batch) > 1 and len(global_batches) == 1 and single:
            found.append(_one(about, group, STRONG, ()))
            continue
        for batch, own in by_batch.items():
            unequal: tuple[str, ...] = ()
            if len(by_batch) > 1:
                others = listed([_samples(other) for other in by_batch if other != batch], "and")
                unequal = (f"only the rows with {_samples(batch)} per GPU: those with {others} did other work",)
            found.append(_one(about, own, WEAK, unequal))
    return found


def _samples(batch: int | None) -> str:
    return "an unstated number of samples" if batch is None else f"{batch} samples"


def _one(about: tuple[str, ...], rows: list[Row], scaling: str, remarks: tuple[str, ...]) -> RateSeries:
    by_size: dict[Size, list[float]] = defaultdict(list)
    for row in rows:
        by_size[row.size].append(row.rate)
    repeated = [size.words() for size in sorted(by_size) if len(by_size[size]) > 1]
    if repeated:
        named = f"{', '.join(repeated[:MOST_NAMED])}{', …' if len(repeated) > MOST_NAMED else ''}"
        remarks += (f"measured more than once, taken together by their harmonic mean: {named}",)
    values = dict(zip((*ABOUT, "data"), about, strict=True))
    batch = rows[0].batch_per_gpu
    if batch is None:
        batches = "batch not stated"
        remarks += ("the batch per GPU is not stated, and taken to be the same in all rows",)
    else:
        batches = f"batch {batch}" if scaling == WEAK else f"global batch {batch * rows[0].size.gpus}"
    parts = [values[name] for name in ("system", "framework", "model", "precision")] + [batches, values["data"]]
    sizes = tuple(sorted(by_size))
    return RateSeries(
        name=", ".join(part for part in parts if part),
        sizes=sizes,
        rates=tuple(len(by_size[size]) / math.fsum(1 / rate for rate in by_size[size]) for size in sizes),
        scaling=scaling,
        system=values["system"],
        model=values["model"],
        precision=values["precision"],
        batch_per_gpu=batch if scaling == WEAK else None,
        remarks=remarks,
    )
