"""MLPerf's logs (https://github.com/mlcommons/logging) as rows of a table: one log is one run.

The throughput is the one that the log states: of `run_stop`, else the harmonic mean of `tracked_stats`; else the
samples that were trained on by the time from `run_start` to `run_stop`, evaluations included.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from analysis.base.errors import StudyError
from analysis.base.text import printable
from analysis.base.values import count_of, number_of
from analysis.read.log.file import LARGEST_DOCUMENT_BYTES

TOKEN = ":::MLLOG"
SUFFIXES = (".log", ".txt", ".out")
HEADERS = ("gpus", "nodes", "samples_per_second", "batch", "run", "status", "benchmark", "platform")
SUCCESS = "success"
MOST_LOGS = 10_000
HEAD_BYTES = 1 << 16  # in which a log says what it is


def logs_of(path: Path) -> list[Path]:
    """The logs in a folder, or the file itself if it is one. Raises OSError."""
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES and file.is_file())
        return [file for file in files[:MOST_LOGS] if _is_log(file)]
    return [path] if path.suffix != ".parquet" and _is_log(path) else []


def read_logs(logs: Sequence[Path]) -> tuple[Sequence[str], Sequence[tuple[str, Sequence[str]]]]:
    """Rows of the columns HEADERS, with the name of the log. Raises StudyError if one does not say enough."""
    return HEADERS, [(printable(log.name), _row(log)) for log in logs]


def _is_log(path: Path) -> bool:
    with path.open("rb") as file:
        return TOKEN.encode() in file.read(HEAD_BYTES)


def _row(path: Path) -> list[str]:
    if path.stat().st_size > LARGEST_DOCUMENT_BYTES:
        raise StudyError(f"{path} has more than {LARGEST_DOCUMENT_BYTES:,} bytes; remove it, or give a table of runs")
    events = list(_events(path.read_text(encoding="utf-8", errors="replace").splitlines()))
    last = {event["key"]: event for event in events}
    platform, stop = last.get("submission_platform", {}), _metadata(last.get("run_stop", {}))
    nodes = _stated(last, "number_of_nodes") or count_of(_metadata(platform), "nodes", 1)
    per_node = _stated(last, "accelerators_per_node")
    gpus = _stated(last, "number_of_ranks", "world_size", "gpus") or count_of(_metadata(platform), "gpus", 1)
    if gpus is None and nodes is not None and per_node is not None:
        gpus = nodes * per_node
    if gpus is None:
        raise StudyError(
            f"{path} does not say on how many GPUs it ran (number_of_ranks, or number_of_nodes and "
            "accelerators_per_node); give a table with a column gpus"
        )
    status = stop.get("status", SUCCESS if "run_stop" in last else "unfinished")
    rate = _rate(events, last)
    if rate is None and status == SUCCESS:
        raise StudyError(
            f"{path} has no throughput: neither tracked_stats nor samples_count between run_start and run_stop; give a "
            "table with a column samples_per_second"
        )
    texts = [last.get(f"submission_{name}", {}).get("value") for name in ("benchmark", "platform")]
    values = [gpus, nodes, rate, _stated(last, "global_batch_size"), path.stem, status, *texts]
    return ["" if value is None else str(value) for value in values]


def _events(lines: Iterable[str]) -> Iterable[dict[str, Any]]:
    for line in lines:
        _, found, text = line.partition(TOKEN)
        if not found:
            continue
        try:
            event = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict) and isinstance(event.get("key"), str):
            yield event


def _metadata(event: Mapping[str, Any]) -> Mapping[str, Any]:
    found = event.get("metadata")
    return found if isinstance(found, dict) else {}


def _stated(last: Mapping[str, Mapping[str, Any]], *keys: str) -> int | None:
    return next((n for key in keys if (n := count_of(last.get(key, {}), "value", 1)) is not None), None)


def _rate(events: Sequence[Mapping[str, Any]], last: Mapping[str, Mapping[str, Any]]) -> float | None:
    if rate := number_of(_metadata(last.get("run_stop", {})), "throughput"):
        return rate
    stats = [event.get("value") for event in events if event["key"] == "tracked_stats"]
    if rates := [rate for one in stats if isinstance(one, dict) and (rate := number_of(one, "throughput"))]:
        return 1 / fmean(1 / rate for rate in rates)
    samples = [n for event in events if (n := number_of(_metadata(event), "samples_count")) is not None]
    began, ended = (number_of(last.get(key, {}), "time_ms") for key in ("run_start", "run_stop"))
    if not samples or began is None or ended is None or ended <= began:
        return None
    return max(samples) / ((ended - began) / 1000) or None
