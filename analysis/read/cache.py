"""The cache of a study's rows, `<study>/analysis/runs.parquet`, keyed by a signature of each run's files."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from analysis.base.frames import records, schema_of
from analysis.read.attempts import is_read
from analysis.read.row import COLUMNS

# Part of every signature; increase it when the content or meaning of a row changes.
ROW_VERSION = 24
CACHE_COLUMNS = {"signature": "string", **COLUMNS}
SPEC = "spec.json"
_ATTEMPT = re.compile(r"attempt-[0-9]+", re.ASCII)


class Signature(NamedTuple):
    """digest: changes when a file on which the run's row depends is added, removed or written to. log_bytes: total size
    of its logs. has_spec: whether the folder is a run's."""

    digest: str
    log_bytes: int
    has_spec: bool


def signature(run_dir: str) -> Signature:
    """Sign a run's files, except the ranks' output: with many ranks and attempts, its stat calls would dominate."""
    files: list[str] = []
    attempts, log_bytes, has_spec = [], 0, False
    for name, entry in _listed(run_dir):
        if _ATTEMPT.fullmatch(name):
            attempts.append(name)
        elif (found := _looked_at(entry)) is not None:
            files.append(f"/{name}/{found.st_mtime_ns}/{found.st_size}")
            has_spec = has_spec or name == SPEC
    for attempt in attempts:
        for name, entry in _listed(f"{run_dir}/{attempt}"):
            if is_read(name) and (found := _looked_at(entry)) is not None:
                files.append(f"{attempt}/{name}/{found.st_mtime_ns}/{found.st_size}")
                if name.endswith(".jsonl"):
                    log_bytes += found.st_size
    attempts.sort()
    files.sort()
    # Names contain neither of the two separators.
    text = "\0".join([str(ROW_VERSION), os.path.basename(run_dir), "/".join(attempts), *files])
    return Signature(hashlib.sha256(os.fsencode(text)).hexdigest(), log_bytes, has_spec)


def _listed(folder: str) -> list[tuple[str, os.DirEntry[str]]]:
    try:
        with os.scandir(folder) as entries:
            return [(entry.name, entry) for entry in entries]
    except OSError:  # reported in the row
        return []


def _looked_at(entry: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return entry.stat()
    except OSError:  # removed meanwhile, or a dangling link
        return None


def cache_path(folder: Path) -> Path:
    return folder / "analysis" / "runs.parquet"


def read_cache(path: Path) -> list[dict[str, Any]]:
    """Return the cached rows with their signatures; empty if the cache is missing, damaged or has other columns."""
    try:
        with pq.ParquetFile(path) as file:  # pyarrow.parquet.read_table would import the dataset reader
            return records(file.read(use_threads=False).cast(schema_of(CACHE_COLUMNS)))
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
