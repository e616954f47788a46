"""Status of running studies for the live page. Only runs whose files changed are read again.

Reads only the end of each log and writes nothing: its figures are a preview, not those of the report.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analysis.base.text import printable
from analysis.base.values import count_of, number_of, seconds_of
from analysis.read.files import signature
from analysis.read.log.file import json_object, open_file
from harness.core.events import COMPLETED, FAILED, SCHEMA_VERSION, attempt_dirs, is_running
from harness.core.run_files import SPEC

TAIL_BYTES = 1 << 14
# Minimum seconds between readings of a study, and minimum multiple of the last reading's duration.
SHORTEST_SECONDS, REST = 0.5, 4
RUNNING, WAITING, STOPPED, MISSING, UNREADABLE = "running", "waiting", "stopped", "missing", "unreadable"
STATUSES = (RUNNING, WAITING, FAILED, STOPPED, UNREADABLE, MISSING, COMPLETED)


@dataclass
class LiveStudy:
    """The last known status of a study.

    Attributes:
        rows: one per run, ordered by name.
        version: increases whenever rows change.
    """

    folder: Path
    rows: list[Mapping[str, Any]] = field(default_factory=list)
    version: int = 0
    _seen: dict[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)
    _next: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def refresh(self) -> int:
        """Read the runs that have changed; return how many."""
        with self._lock:
            # Shared between all viewers: more of them cause no more reading.
            begin = time.monotonic()
            if begin < self._next:
                return 0
            seen, changed = {}, 0
            requested = _requested(self.folder)
            for name in _run_names(self.folder):
                digest = signature(os.path.join(self.folder, "runs", name)).digest
                old = self._seen.get(name)
                if old is None or old[0] != digest:
                    old = (digest, live_row(self.folder / "runs" / name))
                    changed += 1
                seen[name] = old
            rows = [_as_it_is(self.folder / "runs" / name, row) for name, (_, row) in seen.items()]
            rows += [{"run_id": printable(name), "status": MISSING} for name in requested if name not in seen]
            if rows != self.rows:
                self.version += 1
            self.rows, self._seen = rows, seen
            took = time.monotonic() - begin
            self._next = time.monotonic() + max(SHORTEST_SECONDS, REST * took)
            return changed

    def digest(self) -> str:
        """Return a hash that changes with any file of any run."""
        return hashlib.sha256(repr([(name, seen[0]) for name, seen in self._seen.items()]).encode()).hexdigest()

    def counts(self) -> Mapping[str, int]:
        found = Counter(row["status"] for row in self.rows)
        return {status: found[status] for status in STATUSES if found[status]}


def _as_it_is(run_dir: Path, row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A run that has gone silent has stopped, although none of its files says so."""
    if row["status"] == RUNNING and not is_running(attempt_dirs(run_dir)[-1]):
        return {**row, "status": STOPPED}
    return row


def study_names(results: Path) -> list[str]:
    """Return the names of study folders in `results`, ignoring symbolic links."""
    try:
        with os.scandir(results) as entries:
            names = [e.name for e in entries if e.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    return sorted(name for name in names if (results / name / "study.json").is_file())


def live_row(run_dir: Path) -> Mapping[str, Any]:
    """Read the current row of a run; None for unknown values.

    Its throughput (samples per second of all ranks) is that of the last block logged by rank 0; last_t is the time of
    the last event in unix seconds.
    """
    row: dict[str, Any] = {"run_id": printable(run_dir.name), "status": WAITING}
    try:
        spec = json_object(run_dir / SPEC).get("spec")
        spec = spec if isinstance(spec, dict) else {}
        measure: Mapping[str, Any] = given if isinstance(given := spec.get("measure"), dict) else {}
        row |= {"gpus": count_of(spec, "gpus", 1), "steps_asked": count_of(measure, "steps", 1)}
        row |= {name: _text(spec.get(name)) for name in ("framework", "strategy", "model")}
        attempts = attempt_dirs(run_dir)
        result = json_object(run_dir / "result.json")
        if attempts:
            row["attempt"] = len(attempts)
            log = attempts[-1] / "events.rank0.jsonl"
            if log.exists():
                row["status"] = RUNNING
                workload = spec.get("workload")
                row |= _last_of(
                    log,
                    count_of(spec, "global_batch", 1)
                    if not isinstance(workload, dict)
                    else count_of(workload, "samples_per_step", 1),
                )
        if result.get("status") in (COMPLETED, FAILED):
            row |= {"status": result["status"], "reason": _text(result.get("reason"))}
    except (OSError, ValueError) as error:
        return row | {"status": UNREADABLE, "reason": _text(getattr(error, "strerror", None) or error)}
    return row


def _last_of(log: Path, global_batch: int | None) -> Mapping[str, Any]:
    """Read the last block and the last evaluation from the end of a log."""
    with open_file(log) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - TAIL_BYTES))
        lines = file.read(TAIL_BYTES).split(b"\n")
    found: dict[str, Any] = {}
    # The first line may be cut off and the last one unfinished.
    for line in reversed(lines[1 if size > TAIL_BYTES else 0 :]):
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if not isinstance(event, dict) or event.get("v") != SCHEMA_VERSION:
            continue
        found.setdefault("last_t", seconds_of(event, "t"))
        if event.get("ev") == "eval" and (accuracy := number_of(event, "accuracy")) is not None and accuracy <= 1:
            found.setdefault("accuracy", accuracy)
        if event.get("ev") == "steps" and "steps_done" not in found:
            step, n, seconds = count_of(event, "step", 0), count_of(event, "n", 1), seconds_of(event, "seconds")
            if step is not None and n is not None and seconds:
                found |= {"steps_done": step + n, "phase": _text(event.get("phase"))}
                found["samples_per_second"] = global_batch * n / seconds if global_batch else None
    return found


def _run_names(folder: Path) -> list[str]:
    try:
        with os.scandir(folder / "runs") as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def _requested(folder: Path) -> list[str]:
    """Return the runs requested by the study's commands, without duplicates."""
    try:
        invocations = json_object(folder / "study.json").get("invocations")
    except OSError:
        return []
    names: deque[Any] = deque()
    for invocation in invocations if isinstance(invocations, list) else ():
        runs = invocation.get("runs") if isinstance(invocation, dict) else None
        names.extend(runs if isinstance(runs, list) else ())
    return list(dict.fromkeys(name for name in names if isinstance(name, str)))


def _text(value: Any) -> str | None:
    return None if value is None else printable(str(value))
