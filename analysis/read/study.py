"""Reads a study's folder into a table with one row per run, whatever state the runs are in.

Rows are cached in `<study>/analysis/runs.parquet` by a signature of each run's files, so that the next report reads
only runs that changed.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.base.errors import StudyError
from analysis.base.frames import records, table_of
from analysis.base.text import printable
from analysis.base.values import number_of
from analysis.read.across import refuse_copies, refuse_unequal_batches
from analysis.read.cache import CACHE_COLUMNS, cache_path, read_cache, write_cache
from analysis.read.damage import damage_problems, damage_rows
from analysis.read.files import Signature, begin_signing
from analysis.read.pool import read_rows
from analysis.read.row import Run
from analysis.read.run import MISSING, UNREADABLE
from harness.core.events import STUDY_VERSION
from harness.core.run_files import SPEC
from harness.core.seals import is_intact

CHANGED = (
    "study.json was changed: its checksum does not fit, so missing runs, combinations left out and the target accuracy "
    "are not certain"
)


@dataclass(frozen=True)
class Study:
    """The contents of a study's folder.

    invocations: from study.json, only objects. runs: all runs, in any state.
    skipped: combinations that its sweeps left out as unsupported, one sentence each.
    target_accuracy: accuracy whose cost is reported, from the last command that names one.
    problems: what is wrong in the folder, one sentence each, for the report.
    remarks: what the user should know about this reading, one sentence each, for stderr.
    damage: damage to the runs' files by file and kind: the rows of `analysis.read.damage.damage_rows`.
    reread: number of runs read from their files; the others came from the cache.
    """

    name: str
    folder: Path
    created: float | None
    invocations: tuple[Mapping[str, Any], ...]
    runs: tuple[Run, ...]
    skipped: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    reread: int = 0
    target_accuracy: float | None = None
    damage: tuple[Mapping[str, Any], ...] = ()


def read_study(folder: Path, keep: bool = True) -> Study:
    """Read every run of the study. keep: update the cache. Raises StudyError if the folder is not a study or has no
    runs."""
    document = _read_study_json(folder)
    paths = _entries(folder / "runs")
    signatures = begin_signing(paths)
    kept = read_cache(cache_path(folder))
    signed, problems = _runs(paths, signatures())
    if not is_intact(document):
        problems.append(CHANGED)
    requested = _texts(document["invocations"], "runs")
    if not signed:
        raise StudyError(
            f"{folder} has no runs to analyse: no folder in its runs/ holds a spec.json "
            f"(its study.json asks for {len(requested)}): start the study, or name another"
        )
    cached = {row["signature"]: row for row in kept}
    # An unreadable file may have become readable without a change of its name, time or size.
    known = {
        name: row if (row := cached.get(s.digest)) and row["status"] != UNREADABLE else None
        for name, s in signed.items()
    }
    again = [name for name, row in known.items() if row is None]
    read = read_rows([folder / "runs" / name for name in again], sum(signed[name].log_bytes for name in again))
    new = dict(zip(again, read, strict=True))
    rows = [{**new[name], "signature": signed[name].digest} if row is None else row for name, row in known.items()]
    remarks: list[str] = []
    if again or len(cached) != len(rows):
        table = table_of(rows, CACHE_COLUMNS)
        if keep:
            remarks += write_cache(cache_path(folder), table)
        rows = records(table)  # as if read from the cache
    problems += refuse_copies(rows)
    problems += refuse_unequal_batches(rows)
    damage = damage_rows(rows)
    problems += damage_problems(damage)
    rows += [_missing_row(run_id) for run_id in requested if run_id not in signed]
    return Study(
        name=printable(document["study"]),
        folder=folder,
        created=number_of(document, "created"),
        invocations=tuple(document["invocations"]),
        runs=tuple(map(Run.of, rows)),
        skipped=tuple(printable(sentence) for sentence in _texts(document["invocations"], "skipped")),
        problems=tuple(problems),
        remarks=tuple(remarks),
        reread=len(again),
        target_accuracy=_target(document["invocations"]),
        damage=damage,
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
        if not inside and any(file.suffix in (".log", ".out", ".err", ".txt") for file in folder.iterdir()):
            hint += ", or --pattern for a folder of logs"
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


def _entries(runs: Path) -> list[str]:
    """Return the paths of all entries of runs/, sorted; none if there is no such folder."""
    try:
        with os.scandir(runs) as entries:
            return sorted(entry.path for entry in entries)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StudyError(f"cannot read {runs}: {error.strerror}") from None


def _runs(paths: Sequence[str], signatures: Sequence[Signature]) -> tuple[dict[str, Signature], list[str]]:
    """Return the signatures of folders with a spec.json, by name, and a sentence on each other entry."""
    found, problems = {}, []
    # A file has the signature of an empty folder.
    for path, signed in zip(paths, signatures, strict=True):
        name = os.path.basename(path)
        try:
            if signed.has_spec or (Path(path) / SPEC).exists():
                found[name] = signed
                continue
            problems.append(_foreign(Path(path)))
        except OSError as error:
            problems.append(f"runs/{printable(name)} cannot be read: {error.strerror}")
    return found, problems


def _foreign(path: Path) -> str:
    """Describe an entry of runs/ that is not a run. Raises OSError."""
    name = f"runs/{printable(path.name)}"
    if not path.is_dir():
        return f"{name} is a file that is not part of a study; it was left alone"
    if next(path.iterdir(), None) is None:
        return f"{name} is an empty folder"
    return f"{name} is a folder without spec.json, so no run of this study; it was left alone"


def _texts(invocations: Iterable[Mapping[str, Any]], key: str) -> list[str]:
    """Return the distinct texts that the invocations list under a key, such as requested run ids, in order."""
    lists = [texts for invocation in invocations if isinstance(texts := invocation.get(key), list)]
    return list(dict.fromkeys(text for texts in lists for text in texts if isinstance(text, str)))


def _target(invocations: Iterable[Mapping[str, Any]]) -> float | None:
    targets = [number_of(invocation, "target_accuracy") for invocation in invocations]
    valid = [target for target in targets if target is not None and 0 < target < 1]
    return valid[-1] if valid else None


def _missing_row(run_id: str) -> dict[str, Any]:
    reason = "study.json asks for it, and runs/ has no spec.json of it"
    return {"run_id": printable(run_id), "status": MISSING, "reason": reason}


def statuses(runs: Iterable[Run]) -> Counter[str]:
    """Count runs by status."""
    return Counter(run.status for run in runs)
