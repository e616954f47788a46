"""The traces that runs wrote (trace=true, trace=nsys): their files, what they contain, and which are missing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from analysis.read.attempts import Attempt
from analysis.read.row import Run
from harness.core import run_files
from harness.core.spec import NO_TRACE, NSYS

TRACES_NOTE = (
    "Open a .json.gz file in ui.perfetto.dev or chrome://tracing, a .nsys-rep file in Nsight Systems. With trace=true "
    "the traced steps come after all that is measured, and are in none of the figures of speed; the time that they "
    "take is allocated time, as that of the probes. With trace=nsys the profiler was there all the time: those figures "
    "are no measurement."
)
# Up to this many ranks are listed.
MOST_RANKS = 8
OWN = "the harness's own ranges alone"


class Traced(NamedTuple):
    """A run's traces. paths: relative to the study's folder, for all ranks and attempts. how: profilers and numbers of
    steps. missing: absent traces, with reasons."""

    run_id: str
    paths: tuple[str, ...]
    how: str
    missing: tuple[str, ...]


def trace_columns(run_dir: Path, asked: str, attempts: Sequence[Attempt]) -> dict[str, Any]:
    """Return the column `traces`: a JSON list of attempt, rank, file (None: missing), profiler, steps, reason; and
    parts, seconds per step, where PyTorch's profiler saw them."""
    found = [
        {"attempt": attempt.number, "rank": rank, **_checked(run_dir / f"attempt-{attempt.number}", rank, log.trace)}
        for attempt in attempts
        for rank, log in attempt.ranks.items()
        if log.trace is not None
    ]
    return {"traces": json.dumps(found)} if found or asked != NO_TRACE else {}


def traced(run: Run) -> Traced | None:
    """Return the run's traces; None if none were requested."""
    if run.traces is None:
        return None
    traces = run.traces
    paths = [f"runs/{run.run_id}/attempt-{trace['attempt']}/{trace['file']}" for trace in traces if trace["file"]]
    how = [_how(trace) for trace in traces if trace["file"]]
    reasons: dict[str, list[int]] = {}
    for trace in traces:
        if trace["reason"]:
            reasons.setdefault(trace["reason"], []).append(trace["rank"])
    missing = [f"{_ranks_text(ranks)}: {reason}" for reason, ranks in reasons.items()]
    if not traces:
        missing = ["none: the run did not come so far"]
    return Traced(run.run_id, tuple(paths), ", ".join(dict.fromkeys(how)), tuple(missing))


def _checked(folder: Path, rank: int, trace: Mapping[str, Any]) -> dict[str, Any]:
    """Return the event with our own file name, or None and a reason if the file is missing."""
    if trace["file"] is None:
        return dict(trace)
    file = (run_files.NSYS_REPORT if trace["profiler"] == NSYS else run_files.TRACE).format(rank=rank)
    if (folder / file).is_file():
        return {**trace, "file": file}
    return {**trace, "file": None, "reason": "; ".join(filter(None, (trace["reason"], "its file is not there")))}


def _how(trace: Mapping[str, Any]) -> str:
    steps = trace["steps"]
    return (trace["profiler"] or OWN) + (f", {steps} step{'s' * (steps > 1)}" if steps else ", the whole attempt")


def _ranks_text(ranks: Sequence[int]) -> str:
    if len(ranks) > MOST_RANKS:
        return f"{len(ranks)} ranks"
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
