"""The cache of a study's rows, `<study>/analysis/runs.parquet`, keyed by a signature of each run's files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from analysis.base.frames import ENCODED, records, schema_of
from analysis.read.row import COLUMNS

CACHE_COLUMNS = {"signature": "string", **COLUMNS}
_TEXTS = [name for name, kind in CACHE_COLUMNS.items() if kind == "string"]


def cache_path(folder: Path) -> Path:
    return folder / "analysis" / "runs.parquet"


def read_cache(path: Path) -> list[dict[str, Any]]:
    """Return the cached rows with their signatures; empty if the cache is missing, damaged or has other columns."""
    try:
        # pyarrow.parquet.read_table would import the dataset reader, and Table.cast all of Arrow's functions.
        with pq.ParquetFile(path, read_dictionary=_TEXTS) as file:
            table = file.read(use_threads=False)
        return records(table) if table.schema.equals(schema_of(CACHE_COLUMNS, ENCODED)) else []
    except Exception:  # a damaged Parquet file raises many kinds of errors; any of them means no cache
        return []


def write_cache(path: Path, table: pa.Table) -> list[str]:
    """Write the cache atomically. table: with CACHE_COLUMNS. Return errors as remarks, since a report can do without
    the cache."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(exist_ok=True)
        pq.write_table(table, temporary)
        temporary.replace(path)
    except OSError as error:
        return [f"going on without a cache, {path.parent} is not writable ({error.strerror})"]
    return []
