"""A study's folder -> a table with one row per run, whatever state the runs are in.

What was read is kept in `<study>/analysis/runs.parquet`, under a signature of each run's files, so that the next
report reads only the runs that changed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.across import refuse_copies, refuse_unequal_batches
from analysis.attempts import is_read
from analysis.errors import StudyError
from analysis.rank import number_of
from analysis.run import COLUMNS, MISSING, UNREADABLE, read_run_row
from analysis.text import printable
from harness.events import STUDY_VERSION, attempt_dirs

# Part of every signature: a change of what a row holds or means must not meet rows of before the change.
ROW_VERSION = 6


@dataclass(frozen=True)
class Study:
    """What a study's folder holds.

    folder: where it is. invocations: as in study.json, only objects. runs: one row per run, `analysis.run.COLUMNS`.
    skipped: what its sweeps left out, because it does not exist, one sentence each.
    target_accuracy: whose cost is asked for: what the last of its commands that names one says.
    problems: what in the folder is not as it should be, one sentence each, for the report.
    remarks: what the user should know about this reading, one sentence each, for stderr.
    reread: how many runs were read from their files; the others came from the cache.
    """

    name: str
    folder: Path
    created: float | None
    invocations: tuple[Mapping[str, Any], ...]
    runs: pd.DataFrame
    skipped: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    reread: int = 0
    target_accuracy: float | None = None


def read_study(folder: Path) -> Study:
    """Reads every run of the study. Raises StudyError where the folder is not a study, or holds no run at all."""
    document = _read_study_json(folder)
    run_dirs, problems = _run_dirs(folder / "runs")
    requested = _texts(document["invocations"], "runs")
    if not run_dirs:
        raise StudyError(
            f"{folder} has no runs to analyse: no folder in its runs/ holds a spec.json "
            f"(its study.json asks for {len(requested)}): start the study, or name another"
        )
    cached = _read_cache(_cache_path(folder))
    rows: list[dict[str, Any]] = []
    reread = 0
    for run_dir in run_dirs:
        signature = _signature(run_dir)
        row = cached.get(signature)
        # A file that could not be read may be readable now, without any sign of it in its name, time or size.
        if row is None or row["status"] == UNREADABLE:
            row = {"signature": signature, **read_run_row(run_dir)}
            reread += 1
        rows.append(row)
    remarks = []
    if reread or len(cached) != len(rows):
        remarks += _write_cache(_cache_path(folder), rows)
    problems += refuse_copies(rows)
    problems += refuse_unequal_batches(rows)
    problems += _damaged_lines(rows)
    names = {run_dir.name for run_dir in run_dirs}
    rows += [_missing_row(run_id) for run_id in requested if run_id not in names]
    return Study(
        name=printable(document["study"]),
        folder=folder,
        created=number_of(document, "created"),
        invocations=tuple(document["invocations"]),
        runs=frame_of(rows, COLUMNS),
        skipped=tuple(printable(sentence) for sentence in _texts(document["invocations"], "skipped")),
        problems=tuple(problems),
        remarks=tuple(remarks),
        reread=reread,
        target_accuracy=_target(document["invocations"]),
    )


def _read_study_json(folder: Path) -> dict[str, Any]:
    path = folder / "study.json"
    if not folder.is_dir():
        raise StudyError(f"{folder} is not a folder; give the folder of a study, such as results/<study>")
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        inside = sorted(printable(p.parent.name) for p in folder.glob("*/study.json"))
        hint = f"studies in it: {', '.join(inside[:5])}" if inside else "give a folder such as results/<study>"
        raise StudyError(f"{folder} is not a study, it has no study.json; {hint}") from None
    except OSError as error:
        raise StudyError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise StudyError(f"{path} is not JSON, perhaps cut off: restore it, or run the study's command again") from None
    if not isinstance(document, dict) or "v" not in document:
        raise StudyError(f"{path} is not the study.json of a study: it has no version 'v'")
    if document["v"] != STUDY_VERSION:
        raise StudyError(
            f"{path} has version {printable(repr(document['v']))}, this code reads version {STUDY_VERSION}: "
            "update it, or read the study with the version that wrote it"
        )
    invocations = document.get("invocations")
    if (
        not isinstance(document.get("study"), str)
        or not isinstance(invocations, list)
        or not all(isinstance(invocation, dict) for invocation in invocations)
    ):
        raise StudyError(f"{path} is not the study.json of a study: it lacks 'study' or a list 'invocations'")
    return document


def _run_dirs(runs: Path) -> tuple[list[Path], list[str]]:
    """The folders that hold a spec.json, by name, and a sentence on everything else that lies there."""
    found, problems = [], []
    try:
        entries = sorted(runs.iterdir())
    except FileNotFoundError:
        return [], []
    except OSError as error:
        raise StudyError(f"cannot read {runs}: {error.strerror}") from None
    for path in entries:
        name = f"runs/{printable(path.name)}"
        try:
            if not path.is_dir():
                problems.append(f"{name} is a file that is not part of a study; it was left alone")
            elif (path / "spec.json").exists():
                found.append(path)
            elif next(path.iterdir(), None) is None:
                problems.append(f"{name} is an empty folder")
            else:
                problems.append(f"{name} is a folder without spec.json, so no run of this study; it was left alone")
        except OSError as error:
            problems.append(f"{name} cannot be read: {error.strerror}")
    return found, problems


def _texts(invocations: Iterable[Mapping[str, Any]], key: str) -> list[str]:
    """The texts that the invocations list under a key, such as the run ids that they ask for: each once, in order."""
    lists = [texts for invocation in invocations if isinstance(texts := invocation.get(key), list)]
    return list(dict.fromkeys(text for texts in lists for text in texts if isinstance(text, str)))


def _target(invocations: Iterable[Mapping[str, Any]]) -> float | None:
    targets = [number_of(invocation, "target_accuracy") for invocation in invocations]
    valid = [target for target in targets if target is not None and 0 < target < 1]
    return valid[-1] if valid else None


def _missing_row(run_id: str) -> dict[str, Any]:
    reason = "study.json asks for it, and runs/ has no spec.json of it"
    return {"run_id": printable(run_id), "status": MISSING, "reason": reason}


def _damaged_lines(rows: list[dict[str, Any]]) -> list[str]:
    counts = [n for row in rows if (n := row.get("unreadable_lines"))]
    if not counts:
        return []
    lines, runs = sum(counts), len(counts)
    return [
        f"{lines} unreadable line{'s' * (lines > 1)} in the logs of {runs} run{'s' * (runs > 1)}, "
        "passed over and named at the run (a torn last line is normal after a kill)"
    ]


def _signature(run_dir: Path) -> str:
    """Changes when a file of the run, or one of any attempt that its row is made of, is added, removed or written to.

    What the ranks printed is not looked at: with many ranks and attempts, to ask for each file is what takes the time.
    """
    files: list[tuple[str, str, int, int]] = []
    attempts = _attempts(run_dir)
    for place in (run_dir, *attempts):
        for entry in _listed(place):
            try:
                if (place is run_dir and entry.is_file()) or is_read(entry.name):
                    stat = entry.stat()
                    files.append((place.name, entry.name, stat.st_mtime_ns, stat.st_size))
            except OSError:  # removed meanwhile, or a dangling link
                continue
    text = repr((ROW_VERSION, run_dir.name, [path.name for path in attempts], sorted(files)))
    return hashlib.sha256(text.encode("ascii", "backslashreplace")).hexdigest()


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:  # the row says so
        return []


def _attempts(run_dir: Path) -> list[Path]:
    try:
        return attempt_dirs(run_dir)
    except (OSError, ValueError):  # ValueError: a folder such as 'attempt-²'; the row says so
        return []


def _cache_path(folder: Path) -> Path:
    return folder / "analysis" / "runs.parquet"


def _read_cache(path: Path) -> dict[str, dict[str, Any]]:
    """The cached rows by signature; none where there is no cache, or one that is damaged or of other columns."""
    try:
        frame = pd.read_parquet(path)
    except FileNotFoundError:
        return {}
    except Exception:  # a damaged cache fails in as many ways as Parquet has parts, and is no worse than none
        return {}
    if list(frame.columns) != ["signature", *COLUMNS]:
        return {}
    return {row["signature"]: row for row in records(frame)}


def _write_cache(path: Path, rows: list[dict[str, Any]]) -> list[str]:
    """Writes the cache by rename; returns what went wrong, as a remark, since a report can do without it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(exist_ok=True)
        frame_of(rows, {"signature": "string", **COLUMNS}).to_parquet(temporary, index=False)
        temporary.replace(path)
    except OSError as error:
        return [f"going on without a cache, {path.parent} is not writable ({error.strerror})"]
    return []


def frame_of(rows: list[dict[str, Any]], columns: Mapping[str, Any]) -> pd.DataFrame:
    """The rows as a table with just these columns, of these pandas types; NA for what a row lacks."""
    return pd.DataFrame({name: pd.array([row.get(name) for row in rows], dtype=kind) for name, kind in columns.items()})


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows as dicts of plain Python values, with None for everything absent."""
    columns = {name: frame[name].astype(object).where(frame[name].notna(), None).tolist() for name in frame.columns}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def statuses(runs: pd.DataFrame) -> Counter[str]:
    """How many runs ended how."""
    return Counter(runs["status"].tolist())
