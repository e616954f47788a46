"""What is waited for between the start of a job and the end of its first step, in parts: of the rank that met the
others last, and of all.

Of a run's first attempt, since the next one's start-up is another (it loads a checkpoint). Parts, in order, of a rank:
the batch script before the ranks' watchers (job), but for the unpacking of a staged environment (stage), until the
rank's process runs (launch), what the rank's start event says (interpreter, imports, data, rendezvous, build, facts;
docs/recording.md), from there to its first step (resume), and that step itself with what it compiles (first_step).
launch is by the clocks of two nodes: where those differ by too much, it is left out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analysis.base.values import number_of, seconds_of
from analysis.read.attempts import BEGIN, Attempt
from analysis.read.log.rank import RankLog
from analysis.read.log.values import FIRST

# In order. rendezvous_and_build: of logs from before the two were told apart.
PARTS = (
    *("job", "stage", "launch", "interpreter", "verify", "imports", "data", "rendezvous", "rendezvous_and_build"),
    *("build", "facts", "resume", "first_step"),
)
# What a rank does by itself, before it meets the others.
ALONE = ("launch", "interpreter", "verify", "imports", "data")
# The begin is that of rank 0's watcher: the others' begin a little before or after. What is earlier by more is a clock
# that goes wrong.
WATCHERS_APART_SECONDS = 2.0


def startup_columns(run_dir: Path, attempts: Sequence[Attempt]) -> dict[str, Any]:
    """startup_split of a run, as JSON: {"total", "from", "slowest_rank", "staged", "parts": {part: [of that rank,
    shortest, longest]}}, in seconds; staged: tar, sbcast, or None. Nothing where no rank has begun a step."""
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
    """Seconds of a rank's parts; empty where it took no first step of a run that is its own."""
    logged = log.start.get("startup_seconds") if log.start is not None else None
    if log.start is None or not isinstance(logged, dict) or not log.blocks or log.blocks[0].phase != FIRST:
        return {}
    parts = {part: v for part in PARTS if (v := seconds_of(logged, part)) is not None}
    said, stepped = seconds_of(log.start, "t"), log.first_step_t
    if said is not None and stepped is not None and stepped >= said:
        parts["resume"] = stepped - said
    if said is not None and begin is not None and "interpreter" in parts:
        # Between the begin, by rank 0's watcher, and the birth of this rank's process.
        launch = said - sum(v for part, v in parts.items() if part != "resume") - begin
        if launch > -WATCHERS_APART_SECONDS:
            parts["launch"] = max(0.0, launch)
    return parts | {"first_step": log.blocks[0].seconds}


def _before_watchers(path: Path, begin: float | None) -> tuple[dict[str, float], str | None]:
    """From the begin of the batch script to that of the watchers, as begin.json has both, and of it what the staging of
    the environment took; empty where that is not known. And which way it was staged."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}, None
    if not isinstance(document, dict):
        return {}, None
    started, staged = number_of(document, "job_started"), document.get("staged")
    seconds, way = None, None
    if isinstance(staged, dict):
        # Files from before there were two ways do not say which.
        seconds, way = seconds_of(staged, "seconds"), str(staged.get("way", "tar"))
    if started is None or begin is None or begin < started:
        return {}, way
    if seconds is None or seconds > begin - started:
        return {"job": begin - started}, way
    return {"job": begin - started - seconds, "stage": seconds}, way
