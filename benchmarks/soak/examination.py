"""Examines a study's files: whether each run was completed exactly once, and why attempts failed."""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.soak.journal import LOST, TWICE, WEIGHTS, WRONG, Finding, Injected
from harness.core import events, run_files

# What the reason of a failed run says, by the fault that may have caused it.
REASONS: Mapping[str, str] = {
    "node lost": r"disappeared without an exit status|could not be started|NODE_FAIL|requeued 3 times",
    "slurmctld restarted": r"could not be started|could not be requeued|a crash of slurmctld forgot",
    "disk full": r"[Nn]o space left|on a full disk",
    "job cancelled": r"CANCELLED|cancelled before it started",
    "job requeued": r"REQUEUED",
    "rank stopped": r"no progress for \d+ s",
}
# A node's loss may be noticed, and a job's end be reported, this much later.
GRACE_SECONDS = 300.0


@dataclass(frozen=True)
class Failure:
    """A failed attempt's result."""

    run: str
    attempt: int
    reason: str
    stderr: str
    begin: float
    end: float


def examine(run_dirs: Sequence[Path], runs: Sequence[str], faults: Sequence[Injected]) -> list[Finding]:
    """Return what is wrong with a finished study, apart from weights. runs: those that were requested."""
    found = {run_dir.name: run_dir for run_dir in run_dirs}
    findings = [Finding(LOST, run, "was never prepared") for run in runs if run not in found]
    findings += [Finding(WRONG, run, "was not asked for") for run in found if run not in runs]
    for run, run_dir in found.items():
        result = _result(run_dir / run_files.RESULT)
        if result is None:
            findings.append(Finding(LOST, run, "has no result"))
        elif result["status"] == events.COMPLETED:
            findings += _completed(run_dir, result)
        for failure in failures(run_dir):
            if explanation(failure, faults) is None:
                text = f"attempt {failure.attempt} failed, and no fault explains why: {failure.reason}"
                findings.append(Finding(WRONG, run, text, failure.end))
    return findings


def _completed(run_dir: Path, result: Mapping[str, Any]) -> Iterator[Finding]:
    """Compare a completed run's result with its attempts."""
    spec = json.loads((run_dir / "spec.json").read_text(encoding="utf-8"))["spec"]
    ranks, measure = spec["gpus"], spec["measure"]
    well: list[int] = []
    ended = 0.0
    for attempt_dir in events.attempt_dirs(run_dir):
        log = list(_log(attempt_dir, ranks))
        times = sorted(event["t"] for event in log if "t" in event)
        number = run_files.attempt_number(attempt_dir)
        if times and times[0] < ended:
            yield Finding(TWICE, run_dir.name, f"attempt {number} began before the previous one had ended", times[0])
        ended = max([ended, *times[-1:]])
        # A result that could not be written on a full disk is written by an attempt without a step.
        if well and any(event["ev"] == "steps" for event in log):
            yield Finding(
                TWICE, run_dir.name, f"attempt {number} trained after attempt {well[-1]} had ended well", ended
            )
        exits = [_result(path) or {} for path in attempt_dir.glob(run_files.EXITS_OF_RANKS)]
        if len(exits) == ranks and all(each.get("code") == 0 for each in exits):
            well.append(number)
    if well[-1:] != [result["attempt"]]:
        yield Finding(WRONG, run_dir.name, f"attempts {well} ended well, the result is of {result['attempt']}")
    last = run_files.attempt_dir(run_dir, result["attempt"])
    for rank in range(ranks):
        of_rank = events.read_events(last / run_files.events(rank)).events
        done = [event["step"] + event.get("n", 0) for event in of_rank if event["ev"] in ("resume", "steps")]
        if max(done, default=0) != measure["warmup_steps"] + measure["steps"]:
            yield Finding(WRONG, run_dir.name, f"is completed after {max(done, default=0)} steps of rank {rank}")


def failures(run_dir: Path) -> Iterator[Failure]:
    """The failed results of a run: its last one, and those of earlier attempts."""
    paths = [run_dir / run_files.RESULT, *run_dir.glob(f"attempt-*/{run_files.REPLACED_RESULT}")]
    for result in filter(None, map(_result, paths)):
        if result["status"] != events.COMPLETED:
            ended = float(result["ended"])
            yield Failure(
                run_dir.name, result["attempt"], str(result["reason"]), "\n".join(result["stderr_tail"]),
                float(result["started"] or ended), ended,
            )  # fmt: skip


def explanation(failure: Failure, faults: Sequence[Injected]) -> Injected | None:
    """Return the last fault that the failure's reason names; None if there is none. Faults of other runs explain
    nothing."""
    text = f"{failure.reason}\n{failure.stderr}"
    for fault in sorted(faults, key=lambda fault: fault.begin, reverse=True):
        at_that_time = fault.begin <= failure.end and failure.begin <= fault.end + GRACE_SECONDS
        named = fault.kind in REASONS and re.search(REASONS[fault.kind], text)
        if at_that_time and named and fault.concerns(failure.run):
            return fault
    return None


def weights(run_dir: Path) -> str:
    """A digest of the state that a completed run has kept: of the contents of its last checkpoint's archives, without
    the moments at which they were written. Raises OSError if there is none, and BadZipFile."""
    saved = sorted((run_dir / run_files.CHECKPOINT).glob("step-*"), key=lambda path: int(path.name[5:]))
    if not saved:
        raise FileNotFoundError(f"{run_dir} has kept no checkpoint")
    digest = hashlib.sha256()
    for path in sorted(path for path in saved[-1].rglob("*") if zipfile.is_zipfile(path)):
        with zipfile.ZipFile(path) as archive:
            for name in sorted(archive.namelist()):
                digest.update(f"{path.name} {name} ".encode() + archive.read(name))
    return digest.hexdigest()


def compare(run_dirs: Sequence[Path], reference: Mapping[str, str]) -> Iterator[Finding]:
    """Compare the weights of completed runs with an undisturbed study's."""
    for run_dir in run_dirs:
        result = _result(run_dir / run_files.RESULT)
        if result is not None and result["status"] == events.COMPLETED:
            try:
                same = weights(run_dir) == reference[run_dir.name]
            except (OSError, zipfile.BadZipFile) as error:
                yield Finding(WEIGHTS, run_dir.name, str(error))
            else:
                if not same:
                    yield Finding(WEIGHTS, run_dir.name, "are not those of the undisturbed run", result["ended"])


def _log(attempt_dir: Path, ranks: int) -> Iterator[Mapping[str, Any]]:
    for rank in range(ranks):
        path = attempt_dir / run_files.events(rank)
        if path.exists():
            yield from events.read_events(path).events


def _result(path: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None
