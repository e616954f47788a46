"""Rows of a table from elsewhere as texts: CSV, Parquet, or MLPerf's logs."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis.base.errors import StudyError
from analysis.read.imported_mllog import logs_of, read_logs

MOST_ROWS, MOST_COLUMNS, MOST_BYTES = 100_000, 1_000, 100_000_000
DELIMITERS = (",", ";", "\t")


def read_rows(path: Path) -> tuple[Sequence[str], Sequence[tuple[str, Sequence[str]]]]:
    """The names of the columns, and each row with where it is. Raises StudyError if the file cannot be read."""
    try:
        if logs := logs_of(path):
            return read_logs(logs)
        if path.stat().st_size > MOST_BYTES:
            raise StudyError(f"{path} has more than {MOST_BYTES:,} bytes: no table of runs; give one row per run")
        headers, rows = _parquet(path) if path.suffix == ".parquet" else _csv(path)
    except OSError as error:
        raise StudyError(f"cannot read {path}: {error.strerror or 'no table'}") from None
    if len(rows) > MOST_ROWS or len(headers) > MOST_COLUMNS:
        raise StudyError(f"{path} has more than {MOST_ROWS:,} rows or {MOST_COLUMNS:,} columns; give one row per run")
    for where, row in rows:
        if len(row) != len(headers):
            raise StudyError(f"{path}, {where}: {len(row)} values for {len(headers)} columns; give one for each")
    return headers, rows


def _csv(path: Path) -> tuple[list[str], list[tuple[str, list[str]]]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise StudyError(f"{path}, line {line}: not UTF-8; give a CSV file in UTF-8, or .parquet") from None
    first = next((line for line in text.splitlines() if line.strip(" ,;\t")), "")
    delimiter = max(DELIMITERS, key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    found = []
    try:
        for row in reader:
            if any(value.strip() for value in row):
                found.append((f"line {reader.line_num}", row))
    except csv.Error as error:
        raise StudyError(f"{path}, line {reader.line_num}: no CSV ({error}); give a CSV file in UTF-8") from None
    if not found:
        raise StudyError(f"{path} is empty; its first line names the columns, such as gpus,samples_per_second")
    return found[0][1], found[1:]


def _parquet(path: Path) -> tuple[list[str], list[tuple[str, list[str]]]]:
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            table = file.read(use_threads=False)
            names = [str(name) for name in table.column_names]
            columns = [column.to_pylist() for column in table.columns]
    except OSError:
        raise
    except Exception:  # a damaged file raises many kinds of errors
        raise StudyError(f"{path} cannot be read as Parquet; write it again, or give a CSV file") from None
    rows = zip(*columns, strict=True)
    return names, [(f"row {number}", [_text(value) for value in row]) for number, row in enumerate(rows, start=1)]


def _text(value: Any) -> str:
    """Empty for what is not there: null, and pandas' NaN."""
    return "" if value is None or value != value else str(value)
