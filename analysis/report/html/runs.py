"""Details of each run: outcome, last lines printed, and differences from other runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from analysis.base import text
from analysis.base.values import Columns
from analysis.read.row import Run
from analysis.report.html.differences import Settings
from analysis.report.html.folding import deflated
from analysis.report.html.printed import MOST_LINE_LENGTH, MOST_LINES, Printed
from analysis.tables.throughput import goodput

# For very many runs: first fewer lines of each, finally no environments.
FEWER = ((MOST_LINES, True), (10, True), (3, True), (0, True), (0, False))
MOST_DETAILS = 2_500_000  # characters, compressed
MANY_OTHERS = 200  # runs without figures whose whole tails are in the page
FEW_OF_MANY = 3  # lines of each of more


class Details(NamedTuple):
    """The details that the page shows for an opened run.

    block: compressed JSON: {"configuration", "environment": {"shared": {...}, "differing": [keys]}, "environments":
    [{...}] (null: no room for them), "runs": {run id: {"status", "facts", "configuration": {...}, "environment": index,
    "lines", "of"}}}. lines: limit on stderr lines per run. environments: whether the block has environments.
    """

    block: str
    lines: int
    environments: bool


def other_runs(
    runs: Sequence[Run],
    configuration: Settings,
    environment: Settings,
    printed: Mapping[str, Printed],
) -> list[dict[str, Any]]:
    """The runs without figures, each with `lines`, the last of its stderr, `of`, whose lines they are, and
    `differing`, its settings that differ from other runs': configuration first, then environment."""
    others = [(i, run) for i, run in enumerate(runs) if not run.completed]
    most = MOST_LINES if len(others) <= MANY_OTHERS else FEW_OF_MANY
    return [
        {
            **run.columns(),
            "differing": {**configuration.differing_of(i), **environment.differing_of(i)},
            "lines": tail(run, printed, most),
            "of": whose(run, printed),
        }
        for i, run in others
    ]


def tail(run: Run, printed: Mapping[str, Printed], most: int) -> list[str]:
    """The last lines of a run's stderr, from its result or its files; very long lines are shortened."""
    if run.run_id in printed:
        return printed[run.run_id].last(most)
    lines = run.stderr_tail
    return [text.shortened(line, MOST_LINE_LENGTH) for line in lines[-most:]] if most else []


def whose(run: Run, printed: Mapping[str, Printed]) -> str | None:
    """The rank, or ranks, that printed these lines; None if unknown."""
    if run.run_id in printed:
        return printed[run.run_id].of
    return None if run.failed_rank is None else f"rank {run.failed_rank}"


def details_block(
    runs: Sequence[Run],
    configuration: Settings,
    environment: Settings,
    printed: Mapping[str, Printed],
) -> Details:
    """Return the details of all runs, as far as MOST_DETAILS allows."""
    distinct = {id(own): own for own in environment.of_runs if own is not None}
    places = {key: place for place, key in enumerate(distinct)}
    for most, whole in FEWER:
        of_runs = {
            run.run_id: {
                "status": run.status,
                "facts": _facts(run),
                "configuration": configuration.of_runs[i],
                "environment": places.get(id(environment.of_runs[i])) if whole else None,
                "lines": tail(run, printed, most),
                "of": whose(run, printed),
            }
            for i, run in enumerate(runs)
        }
        halves = {"configuration": configuration, "environment": environment}
        document = {
            **{name: {"shared": half.shared, "differing": list(half.differing)} for name, half in halves.items()},
            "environments": list(distinct.values()) if whole else None,
            "runs": of_runs,
        }
        block = deflated(json.dumps(document, separators=(",", ":")))
        if len(block) <= MOST_DETAILS:
            break
    return Details(block, most, whole)


def attempts_cost(run: Columns) -> str:
    """Time spent in the attempts of a run, and its useful share."""
    share = text.percent(goodput([run["useful_seconds"]], [run["allocated_seconds"]]))
    return (
        f"{run['attempts']} attempts: {text.duration(run['useful_seconds'])} useful of "
        f"{text.duration(run['allocated_seconds'])} allocated, goodput {share}; "
        f"{text.duration(run['idle_seconds'])} between the attempts, {text.duration(run['checkpoint_seconds'])} in "
        f"checkpoints, {text.count(run['lost_steps'])} steps lost"
    )


def damages(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """(run, what the reader skipped in its logs) of each run with damaged logs."""
    found = []
    for run in runs:
        said = []
        if n := run.unreadable_lines:
            said.append(f"{n:,} unreadable line{'s' * (n > 1)}")
        if n := run.left_out_blocks:
            said.append(f"{n:,} block{'s' * (n > 1)} of steps not in every rank's log, or not alike")
        if said:
            found.append((run.run_id, ", ".join(said)))
    return found


def _facts(run: Run) -> list[tuple[str, str]]:
    rate = run.samples_per_second if run.stated_cost or (run.samples and run.seconds) else None
    facts = {
        "Reason": run.reason,
        "Samples/s": None if rate is None else text.number(rate),
        "Test accuracy": None if run.accuracy is None else text.percent(run.accuracy, 1),
        "Failed first": None if run.failed_rank is None else f"rank {run.failed_rank}",
        "Exit code": run.exit_code,
        "Attempt": run.attempt,
        "Time": attempts_cost(run) if run.attempts is not None and run.attempts > 1 else None,
        "Job": run.job_id,
        "Host": run.hosts,
        "Started": None if run.started is None else text.moment(run.started),
        "Ended": None if run.ended is None else text.moment(run.ended),
        "Oversubscribed": run.oversubscribed,
        "Notes": run.notes,
    }
    return [(name, str(value)) for name, value in facts.items() if value is not None]
