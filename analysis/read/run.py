"""Reads one run's folder into one row: its spec, how it ended, and what its ranks measured.

File contents never raise: a run that cannot be read becomes a row that says so.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from analysis.base.text import printable, text_or_none
from analysis.base.values import LARGEST_COUNT, count_of, number_of, seconds_of
from analysis.read.attempt_notes import attempt_notes
from analysis.read.attempts import (
    Attempt,
    Piece,
    attempt_columns,
    pieces_of,
    read_attempts,
    seconds_between,
)
from analysis.read.columns.evaluations import evaluation_columns
from analysis.read.columns.issue_time import issue_columns
from analysis.read.columns.protocol import probe_columns, protocol_columns, protocol_notes
from analysis.read.columns.resources import resource_columns
from analysis.read.columns.roofline_probe import ceiling_columns
from analysis.read.columns.spec import asked_columns
from analysis.read.columns.startup import startup_columns
from analysis.read.columns.steadiness import run_notes, steadiness_columns
from analysis.read.columns.traces import trace_columns
from analysis.read.columns.validity import faults_of, unchecked_of
from analysis.read.columns.workload import counted, processes_of, workload_columns, workload_notes
from analysis.read.damage import NO_FILE, NO_LOG, OTHER_VERSION, TWO_ATTEMPTS, Damage, damage_text
from analysis.read.log.file import check_document
from analysis.read.log.rank import RankLog
from analysis.read.log.values import MEASURE
from harness.core.events import COMPLETED, FAILED, UnknownVersion, attempt_dirs, read_result
from harness.core.measuring.oversubscription import shared_cores_or_gpus
from harness.core.run_files import BEGIN, ENVIRONMENT, RESULT, SPEC, VERIFY
from harness.core.spec import RunSpec, Site, read_run_and_id
from harness.core.strategies import info

UNFINISHED, UNREADABLE, INVALID, MISSING = "unfinished", "unreadable", "invalid", "missing"
_FILE = re.compile(r"(attempt-[0-9]+/)?[\w.-]+\.(jsonl?|npz)")

OVERLAP_SECONDS = 60.0  # tolerated difference between the clocks of two nodes
CLOCK_SECONDS = 1e-9  # resolution of a rank's clock; anything shorter was not measured


def read_run_row(run_dir: Path) -> dict[str, Any]:
    """Return the row of one run: columns of `Run`, without absent ones. Never raises for the folder's contents."""
    row: dict[str, Any] = {"run_id": printable(run_dir.name)}
    try:
        for name in (SPEC, RESULT):
            check_document(run_dir / name)
        spec, site, run_id = read_run_and_id(run_dir)
        row |= asked_columns(spec, site, run_id)
        result = read_result(run_dir)
        row |= _result_columns(result, site)
        row |= _last_attempt(run_dir)
        timed_by_first = spec.workload is not None and spec.workload.pattern is not None
        synchronous = spec.workload is not None or info(spec.strategy).synchronous
        attempts = read_attempts(run_dir, timed_by_first, synchronous, spec.placement.nodes == 1)
    except (ValueError, OSError, RecursionError) as error:
        message = _message(error, run_dir)
        kind = OTHER_VERSION if isinstance(error, UnknownVersion) else NO_FILE
        damage = damage_text([Damage(_named(message, run_dir), kind, 1)])
        return row | {"status": UNREADABLE, "reason": _joined(row.get("reason"), message), "damage": damage}
    row |= startup_columns(run_dir, attempts)
    return row | _measured_columns(spec, row, attempts) | trace_columns(run_dir, spec.trace, attempts)


def _result_columns(result: Mapping[str, Any] | None, site: Site) -> dict[str, Any]:
    if result is None:
        return {"status": UNFINISHED, "reason": "no result.json: still running, or ended without a word"}
    if result["status"] not in (COMPLETED, FAILED):
        raise ValueError(f"result.json: status {result['status']!r}; known are {COMPLETED!r} and {FAILED!r}")
    tail = result.get("stderr_tail")
    columns = {
        "status": result["status"],
        "reason": text_or_none(result.get("reason")),
        "oversubscribed": text_or_none(result.get("oversubscribed")) or text_or_none(site.oversubscribed),
        "job_id": text_or_none(result.get("job_id")),
        "failed_rank": count_of(result, "failed_rank", 0),
        "exit_code": count_of(result, "exit_code", -LARGEST_COUNT),
        "started": number_of(result, "started"),
        "ended": number_of(result, "ended"),
        "stderr_tail": json.dumps([printable(str(line)) for line in tail] if isinstance(tail, list) else []),
    }
    if columns["status"] == FAILED and not columns["reason"]:
        columns["reason"] = "result.json gives no reason"
    return columns


def _last_attempt(run_dir: Path) -> dict[str, Any]:
    """Return the number of the last attempt, even if it has not begun."""
    folders = attempt_dirs(run_dir)
    if not folders:
        return {}
    return {"attempt": min(int(folders[-1].name.removeprefix("attempt-")), LARGEST_COUNT)}


def _measured_columns(spec: RunSpec, row: Mapping[str, Any], attempts: Sequence[Attempt]) -> dict[str, Any]:
    pieces = pieces_of(attempts, row["status"] == COMPLETED)
    every = counted(spec.workload, [block for piece in pieces for block in piece.blocks])
    blocks = [block for block in every if block.phase == MEASURE]
    seconds, samples = sum([block.seconds for block in blocks]), sum([block.samples for block in blocks])
    steps = sum([block.n for block in blocks])
    measured = seconds >= CLOCK_SECONDS and 0 < samples <= LARGEST_COUNT >= steps
    damaged = sum(rank.damaged for attempt in attempts for rank in attempt.ranks.values())
    left_out = sum(piece.left_out for piece in pieces)
    columns: dict[str, Any] = {"unreadable_lines": damaged, "left_out_blocks": left_out}
    if measured:
        columns |= {"steps": steps, "seconds": seconds, "samples": samples} | steadiness_columns(blocks)
        columns |= issue_columns(blocks)
    ranks = _last_logs(attempts)
    columns |= workload_columns(spec.workload, every, ranks)
    columns |= attempt_columns(attempts, pieces) | _device_columns(pieces, ranks) | _environment_columns(attempts)
    if not row.get("oversubscribed") and row["status"] != UNFINISHED:
        columns["oversubscribed"] = shared_cores_or_gpus([rank.start for rank in ranks.values() if rank.start])
    columns |= _start_columns(ranks) | probe_columns(ranks) | _eval_columns(ranks) | _staleness_columns(ranks)
    columns |= _work_columns(spec, attempts, pieces) | evaluation_columns(attempts, pieces)
    own_steps = [block.seconds / block.n for block in blocks] if spec.workload else []
    columns |= protocol_columns(ranks, own_steps)
    columns |= resource_columns(attempts, pieces, ranks, spec.placement.nodes) | ceiling_columns(ranks)

    notes = workload_notes(spec.workload, columns, ranks)
    notes += attempt_notes(attempts, pieces) + _version_notes(pieces) + _stream_notes(ranks)
    notes += protocol_notes(ranks, own_steps)
    notes += run_notes(columns)
    if fallbacks := list(dict.fromkeys(what for rank in ranks.values() for what in rank.fallbacks)):
        columns["fallbacks"] = json.dumps(fallbacks)
        notes += fallbacks
    if spec.verify:
        # The other ranks wait while rank 0 verifies its network, so this start-up is not typical.
        notes.append("start-up not stated: verify=true takes its time there")
    else:
        columns |= _startup_columns(attempts, ranks)
    if damaged:
        notes.append(f"{damaged} unreadable line{'s' * (damaged > 1)} in its logs")
    if left_out:
        notes.append(f"{left_out} block{'s' * (left_out > 1)} left out: not in every rank's log, or not alike")
    status, reason = row["status"], row.get("reason")
    if status == COMPLETED:
        faults = faults_of(spec, pieces)
        if not blocks:
            faults.append("no measured steps")
        elif not measured:
            faults.append("the measured steps hold no samples or no seconds")
        if faults:
            status, reason = INVALID, "; ".join(faults)
        notes += unchecked_of(spec, pieces)
    elif status == UNFINISHED:
        done = f"{columns['steps']:,} of {spec.measure.steps:,} measured steps logged" if measured else None
        reason = _joined(reason, done or ("nothing measured yet" if ranks else "no rank has logged anything"))
        if attempts and attempts[-1].why_ended:
            reason = _joined(reason, f"attempt {attempts[-1].number} ended: {attempts[-1].why_ended}")
    damage = damage_text(_damage(spec, attempts, status))
    return columns | {"status": status, "reason": reason, "notes": "; ".join(notes) or None, "damage": damage}


def _damage(spec: RunSpec, attempts: Sequence[Attempt], status: str) -> list[Damage]:
    """Return the damage to the attempts' files; logs count as missing only once the run has ended."""
    found = [each for attempt in attempts for each in attempt.damage]
    for former, latter in pairwise(attempts):
        idle = seconds_between(former, latter)
        if idle is not None and idle < -OVERLAP_SECONDS:
            found.append(Damage(f"attempt-{latter.number}/{BEGIN}", TWO_ATTEMPTS, 1))
    if status in (COMPLETED, INVALID) and (last := next((a for a in reversed(attempts) if a.ranks), None)):
        absent = [rank for rank in range(processes_of(spec, last.ranks)) if rank not in last.ranks]
        found += [Damage(f"attempt-{last.number}/events.rank{rank}.jsonl", NO_LOG, 1) for rank in absent]
    return found


def _last_logs(attempts: Sequence[Attempt]) -> Mapping[int, RankLog]:
    """Return the logs of the last attempt that has any; start-up, probes, evaluation and end come from it alone."""
    return next((attempt.ranks for attempt in reversed(attempts) if attempt.ranks), {})


def _device_columns(pieces: Sequence[Piece], last: Mapping[int, RankLog]) -> dict[str, Any]:
    """Return the devices on which the counted steps ran, over all attempts."""
    logs = [*(piece.attempt.ranks for piece in pieces), last]
    starts = [rank.start for ranks in logs for rank in ranks.values() if rank.start is not None]
    names = sorted({printable(name) for s in starts if isinstance(name := s.get("device_name"), str)})
    return {"device_names": json.dumps(names)} if starts else {}


def _environment_columns(attempts: Sequence[Attempt]) -> dict[str, Any]:
    """Return file, digest and hosts of the last recorded environment. Its contents are read again only where they are
    shown, once per digest, since nearly all runs of a study share one."""
    for attempt in reversed(attempts):
        if (found := attempt.environment) is not None:
            file = f"attempt-{attempt.number}/{ENVIRONMENT}"
            return {"env_file": file, "env_digest": found.digest, "hosts": found.hosts}
    return {}


def _version_notes(pieces: Sequence[Piece]) -> list[str]:
    """Return a note if the environment changed between two attempts whose steps count."""
    versions: dict[str, set[str]] = defaultdict(set)
    for piece in pieces:
        first = next((rank.start for rank in piece.attempt.ranks.values() if rank.start is not None), {})
        named = first.get("versions")
        for name, version in named.items() if isinstance(named, dict) else ():
            versions[printable(name)].add(printable(str(version)))
    changed = [f"{name} {' / '.join(sorted(values))}" for name, values in sorted(versions.items()) if len(values) > 1]
    return [f"its attempts ran with different versions: {', '.join(changed)}"] if changed else []


def _stream_notes(ranks: Mapping[int, RankLog]) -> list[str]:
    """Return a note for a sharded data set: its shuffle buffer, and the ranks' shares if they differ."""
    streams = [s for rank in ranks.values() if isinstance(s := (rank.start or {}).get("stream"), dict)]
    shares, buffers = ([n for s in streams if (n := count_of(s, k, 1))] for k in ("samples", "buffer_samples"))
    if not shares or not buffers:
        return []
    fewest, most = min(shares), max(shares)
    note = f"each rank read its share of the shards, shuffled among {max(buffers):,} samples"
    if most > 1.01 * fewest:  # the plan uses the same threshold (harness/core/shards.py)
        note += f"; the shares are {fewest:,} to {most:,} samples: those of a small one were seen more often"
    return [note]


def _start_columns(ranks: Mapping[int, RankLog]) -> dict[str, Any]:
    first = next((rank for rank in ranks.values() if rank.start is not None), None)
    if first is None or first.start is None:
        return {}
    versions, communication = first.start.get("versions"), first.start.get("communication")
    columns: dict[str, Any] = {
        "parameters": first.parameters,
        "train_samples": count_of(first.start, "train_samples", 1),
        "gradient_bytes": count_of(first.start, "gradient_bytes", 0),
    }
    if isinstance(versions, dict):
        columns["versions"] = json.dumps({printable(k): printable(str(v)) for k, v in versions.items()})
    if isinstance(communication, str):
        columns["communication"] = printable(communication)
    return columns


def _startup_columns(attempts: Sequence[Attempt], ranks: Mapping[int, RankLog]) -> dict[str, Any]:
    """Return the seconds of each part of the start-up, and from the start of the first attempt to the first step if
    every rank reached it; both on the slowest rank."""
    columns: dict[str, Any] = {}
    logged = [rank.start.get("startup_seconds") for rank in ranks.values() if rank.start is not None]
    parts = [part for part in logged if isinstance(part, dict)]
    timed = [{printable(k): v for k in part if (v := seconds_of(part, k)) is not None} for part in parts]
    slowest = max(timed, key=lambda part: sum(part.values()), default=None)
    if slowest:
        columns |= {"startup": json.dumps(slowest), "startup_seconds": sum(slowest.values())}
    first = attempts[0] if attempts else None
    if first is None or first.clock_jumped:
        return columns
    if first.begin is not None and first.ranks and first.first_step == 0:
        begun = [rank.first_step_t for rank in first.ranks.values()]
        known = [t - first.begin for t in begun if t is not None]
        if len(known) == len(begun) and max(known) >= 0:
            columns["first_step_seconds"] = max(known)
    return columns


def _work_columns(spec: RunSpec, attempts: Sequence[Attempt], pieces: Sequence[Piece]) -> dict[str, Any]:
    """Return what identifies equal work across runs: the gradient of step 0, and the file of verify=true."""
    columns: dict[str, Any] = {}
    number = next((attempt.number for attempt in reversed(attempts) if attempt.verify), None)
    if number is not None:
        columns["verify_file"] = f"attempt-{number}/{VERIFY}"
    if pieces and 0 in pieces[0].attempt.ranks and info(spec.strategy).synchronous:
        gradients = pieces[0].attempt.ranks[0].gradients
        if gradients is not None and gradients.step == 0:
            columns |= {"gradient_sum": gradients.sum, "gradient_magnitude": gradients.magnitude}
    return columns


def _eval_columns(ranks: Mapping[int, RankLog]) -> dict[str, Any]:
    """Return the last evaluation logged by rank 0."""
    if 0 not in ranks or ranks[0].accuracy is None:
        return {}
    return dict(zip(("accuracy", "test_samples", "samples_seen"), ranks[0].accuracy, strict=True))


def _staleness_columns(ranks: Mapping[int, RankLog]) -> dict[str, Any]:
    """Return the staleness over the whole run, in updates; empty without parameter servers."""
    found = next((rank.staleness for rank in ranks.values() if rank.staleness is not None), None)
    return {} if found is None else {"staleness_mean": found.mean, "staleness_max": found.largest}


def _joined(*parts: str | None) -> str | None:
    return "; ".join(part for part in parts if part) or None


def _message(error: BaseException, run_dir: Path) -> str:
    """Return the error's message with paths relative to the run's folder."""
    if isinstance(error, RecursionError):
        return "a file is nested too deeply to be JSON of ours"
    if isinstance(error, OSError) and error.filename:
        text = f"cannot read {error.filename}: {error.strerror}"
    else:
        text = str(error)
    return printable(text.replace(f"{run_dir}/", ""))


def _named(message: str, run_dir: Path) -> str:
    """Return the file that a message names."""
    found = _FILE.search(message)
    return printable(found[0]) if found else printable(run_dir.name)
