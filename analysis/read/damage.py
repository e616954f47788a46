"""Kinds of damage to a run's files and their wording; counted by file and kind, and listed in the report.

Damage is never fatal. Damaged parts are left out of every figure. docs/run-directory.md tells users the same.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

TORN, EMPTY = "torn line", "empty log"
NOT_JSON, NOT_TEXT, NESTED, TOO_LONG = "not JSON", "not UTF-8", "nested too deeply", "line too long"
CHECKSUM, LOST, CUT = "checksum", "missing line", "cut log"
NO_EVENT, VALUE, REPEATED, BEYOND = "no event", "impossible value", "repeated", "too many events"
CLOCK_BACK, CLOCK_GAP, CLOCKS_APART = "clock went back", "clock gap", "clocks apart"
NO_LOG, NO_DOCUMENT, NO_FILE = "missing log", "damaged file", "cannot be read"
OTHER_VERSION, TWO_ATTEMPTS = "another version", "overlapping attempts"

LONGEST_LINE_BYTES = 1 << 20
MOST_EVENTS = 1_000_000
# Adjustments of a rank's clock up to this are ignored.
CLOCK_SECONDS = 1.0
# Longer gaps between a rank's events are included in the events' own seconds.
GAP_SECONDS = 6 * 3600.0

# Wording of each kind in the report; {lines} and {times} are replaced by the count.
KINDS: Mapping[str, str] = {
    TORN: "its last line is cut (normal after a kill, and while a run writes)",
    EMPTY: "the log is empty: its rank ended, or was ended, before it wrote a line",
    NOT_JSON: "{lines} not JSON",
    NOT_TEXT: "{lines} not UTF-8 text",
    NESTED: "{lines} nested too deeply to be read",
    TOO_LONG: f"{{lines}} longer than {LONGEST_LINE_BYTES >> 20} MiB, cut",
    CHECKSUM: "{lines} whose checksum does not fit: changed, or after a line that is missing",
    LOST: "{lines} missing, by the numbers of those before and after",
    CUT: "not as long as when its rank ended",
    NO_EVENT: "{lines} without a version and the name of an event",
    VALUE: "{lines} with a value that cannot be (a wrong type, below 0, not finite, beyond all bounds)",
    REPEATED: "{lines} there before: what was written twice in a row counts once, blocks logged apart count nowhere",
    BEYOND: f"{{lines}} after the first {MOST_EVENTS:,} events, not read",
    CLOCK_BACK: "the clock went back {times}: its times are not stated; durations are of another clock",
    CLOCK_GAP: f"the clock was silent for over {GAP_SECONDS / 3600:g} h, or leapt, {{times}}: its times are not stated",
    CLOCKS_APART: "its times contradict those of other ranks: times of the attempt are not stated",
    NO_LOG: "it is not there, and the run was completed",
    NO_DOCUMENT: "no JSON object, or its checksum does not fit: what it would say is not known",
    NO_FILE: "it could not be read, and the run with it",
    OTHER_VERSION: "of another version than this code reads, and the run with it not read",
    TWO_ATTEMPTS: "it began before the attempt before it had ended: two attempts of the run wrote at once",
}
# Kinds that are lines which could not be read: what the column `unreadable_lines` counts.
UNREADABLE_LINES = (TORN, NOT_JSON, NOT_TEXT, NESTED, TOO_LONG, CHECKSUM, NO_EVENT, VALUE)
# Clock damage: times of day in such a log are not used.
CLOCKS = (CLOCK_BACK, CLOCK_GAP, CLOCKS_APART)


class Damage(NamedTuple):
    """file: relative to the run's folder. kind: one of KINDS. times: number of lines or occurrences."""

    file: str
    kind: str
    times: int


def sentence(kind: str, count: int) -> str:
    lines = "1 line" if count == 1 else f"{count:,} lines"
    times = "once" if count == 1 else f"{count:,} times"
    return KINDS[kind].format(lines=lines, times=times)


def damage_text(found: Iterable[Damage]) -> str | None:
    """Encode damage for a run's row, as a JSON list of [file, kind, count]; None without damage."""
    listed = [list(each) for each in found]
    return json.dumps(listed) if listed else None


def damage_rows(runs: Iterable[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    """Return the damage of all runs, in order: run_id, file, kind, count, sentence."""
    return tuple(
        {"run_id": run["run_id"], "file": file, "kind": kind, "count": count, "sentence": sentence(kind, count)}
        for run in runs
        if run.get("damage")
        for file, kind, count in json.loads(run["damage"])
    )


def damage_problems(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one sentence for all unreadable lines together, and one for each other kind."""
    counts: dict[str, list[int]] = defaultdict(list)
    runs: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        kind = "" if row["kind"] in UNREADABLE_LINES else row["kind"]
        counts[kind].append(row["count"])
        runs[kind].add(row["run_id"])
    problems = []
    for kind in ("", *KINDS):
        if not counts[kind]:
            continue
        of = f"{len(runs[kind]):,} run{'s' * (len(runs[kind]) > 1)}"
        if kind:
            files = len(counts[kind])
            problems.append(f"{kind}, in {files:,} file{'s' * (files > 1)} of {of}: named under damaged files")
        else:
            lines = sum(counts[kind])
            problems.append(
                f"{lines} unreadable line{'s' * (lines > 1)} in the logs of {of}, passed over and named at the run "
                "(a torn last line is normal after a kill)"
            )
    return problems
