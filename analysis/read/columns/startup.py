"""Splits the time from the start of a job to the end of its first step into parts, for all ranks and for the rank that
reached the rendezvous last.

Only a run's first attempt counts, since later ones also load a checkpoint. Parts of a rank, in order: the batch script
up to the ranks' supervisors (job), except for unpacking a staged environment (stage); until the rank's process runs
(launch); the parts in the rank's start event (interpreter, imports, data, rendezvous, build, facts; docs/recording.md);
until its first step (resume); and that step, including compilation (first_step).
launch compares times of two nodes, corrected by the difference of their clocks (analysis/read/clocks.py); it is left
out where that is not known.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis.base.values import number_of, seconds_of
from analysis.read.attempts import Attempt
from analysis.read.log.file import json_object
from analysis.read.log.rank import RankLog
from analysis.read.log.values import FIRST
from harness.core.run_files import BEGIN

# In order. rendezvous_and_build: from older logs, which do not separate the two.
PARTS = (
    *("job", "stage", "launch", "interpreter", "verify", "imports", "data", "rendezvous", "rendezvous_and_build"),
    *("build", "facts", "resume", "first_step"),
)
# What a rank does before it first waits for the others.
ALONE = ("launch", "interpreter", "verify", "imports", "data")
# begin.json is written by rank 0's supervisor; others start slightly before or after. A larger lead is clock error.
WATCHERS_APART_SECONDS = 2.0


def startup_columns(run_dir: Path, attempts: Sequence[Attempt]) -> dict[str, Any]:
    """Return the column startup_split as JSON: {"total", "from", "slowest_rank", "staged", "parts": {part: [slowest
    rank, shortest, longest]}}, in seconds; staged: tar, sbcast, or None. No column if a rank took no step."""
    if not attempts or not attempts[0].ranks or attempts[0].first_step != 0:
        return {}
    first = attempts[0]
    before, staged = _before_watchers(run_dir / f"attempt-{first.number}" / BEGIN, first.begin)
    known = {rank: parts for rank, log in first.ranks.items() if (parts := _parts(log, first.begin))}
    if len(known) != len(first.ranks):
        return {}
    slowest = max(known, key=lambda rank: (sum(known[rank].get(part, 0.0) for part in ALONE), -rank))
    known = {rank: {**before, **parts} for rank, parts in known.items()}
    spread = {}
    for part in PARTS:
        seconds = [parts[part] for parts in known.values() if part in parts]
        if part in known[slowest]:
            spread[part] = [known[slowest][part], min(seconds), max(seconds)]
    ends = [log.first_step_t + log.blocks[0].seconds for log in first.ranks.values() if log.first_step_t is not None]
    if "launch" in spread and first.begin is not None and ends:
        total = sum(before.values()) + max(ends) - first.begin
    else:
        total = max(sum(parts.values()) for parts in known.values())
    since = "rank" if "launch" not in spread else "job" if before else "watchers"
    split = {"total": total, "from": since, "slowest_rank": slowest, "staged": staged, "parts": spread}
    return {"startup_split": json.dumps(split)}


def _parts(log: RankLog, begin: float | None) -> dict[str, float]:
    """Return the seconds of a rank's parts; empty if its log has no first step or no start-up times."""
    logged = log.start.get("startup_seconds") if log.start is not None else None
    if log.start is None or not isinstance(logged, dict) or not log.blocks or log.blocks[0].phase != FIRST:
        return {}
    parts = {part: v for part in PARTS if (v := seconds_of(logged, part)) is not None}
    # What a training of the user's own did before its first step, in one part.
    script = seconds_of(logged, "script") or seconds_of(logged, "until_first_line") or 0.0
    said, stepped = log.start_t, log.first_step_t
    if said is not None and stepped is not None and stepped >= said:
        parts["resume"] = stepped - said + script
    if said is not None and begin is not None and "interpreter" in parts:
        # From the begin written by rank 0's supervisor to the start of this rank's process.
        launch = said - script - sum(v for part, v in parts.items() if part != "resume") - begin
        if launch > -WATCHERS_APART_SECONDS:
            parts["launch"] = max(0.0, launch)
    return parts | {"first_step": log.blocks[0].seconds}


def _before_watchers(path: Path, begin: float | None) -> tuple[dict[str, float], str | None]:
    """Return the seconds from the start of the batch script to that of the supervisors (from begin.json), with staging
    of the environment apart, empty if unknown; and how it was staged."""
    document = json_object(path)
    started, staged = number_of(document, "job_started"), document.get("staged")
    seconds, way = None, None
    if isinstance(staged, dict):
        # Older files, from when there was one way, do not name it.
        seconds, way = seconds_of(staged, "seconds"), str(staged.get("way", "tar"))
    if started is None or begin is None or begin < started:
        return {}, way
    if seconds is None or seconds > begin - started:
        return {"job": begin - started}, way
    return {"job": begin - started - seconds, "stage": seconds}, way
