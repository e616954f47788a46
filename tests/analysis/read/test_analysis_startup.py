"""The parts of the start-up, from hand-written logs: the job starts at 0 s, its supervisors at 2 s."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from seen import Seen, words
from study_builder import CREATED, Logs, StudyBuilder, spec_of

from analysis.read.study import read_study
from analysis.report.findings import findings_of
from analysis.report.startup import SHOWN_COLUMNS
from harness.core.serialization import write_json

SAME = {"data": 0.5, "rendezvous": 1.0, "build": 0.25, "facts": 0.25}
PARTS = [{"interpreter": 1.0, "imports": 4.0, **SAME}, {"interpreter": 1.0, "imports": 6.0, **SAME}]


def start_of(run_dir: Path, rank: int, parts: Mapping[str, float], born: float, first_seconds: float) -> None:
    """Add a start-up to a rank's log: its process starts `born` s after the job, its first step 0.5 s after `start`."""
    path = run_dir / "attempt-1" / f"events.rank{rank}.jsonl"
    start, first, *rest = map(json.loads, path.read_text().splitlines())
    t = CREATED + born + sum(parts.values())
    first |= {"t": t + 0.5 + first_seconds, "phase": "first", "seconds": first_seconds}
    lines = [{**start, "t": t, "startup_seconds": parts}, first, *rest]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def row_of(study: StudyBuilder) -> dict[str, float | str | None]:
    (row,) = findings_of(read_study(study.folder)).startup
    return row


@pytest.fixture
def started(study: StudyBuilder) -> Path:
    run_dir = study.add(spec_of(2), Logs(begin=CREATED + 2.0))
    write_json(run_dir / "attempt-1" / "begin.json", {"t": CREATED + 2.0, "job_id": "17", "job_started": CREATED})
    for rank in (0, 1):
        start_of(run_dir, rank, PARTS[rank], born=3.0 + rank, first_seconds=3.0 - rank)
    return run_dir


def test_parts_of_the_slowest_rank_add_up_to_the_first_step(study: StudyBuilder, started: Path) -> None:
    row = row_of(study)
    # Rank 1: its process starts 2 s after the supervisors, and its imports take 2 s longer.
    assert (row["slowest_ranks"], row["total_from"]) == ("1", "job")
    expected = {"job": 2.0, "launch": 2.0, **PARTS[1], "resume": 0.5, "first_step": 2.0}
    assert {part: row[f"{part}_seconds"] for part in expected} == pytest.approx(expected, abs=1e-4)
    assert (row["imports_seconds_min"], row["imports_seconds_max"]) == (4.0, 6.0)
    assert row["total_seconds"] == pytest.approx(sum(expected.values()), abs=1e-4)


def test_the_report_shows_the_parts_with_their_spread(study: StudyBuilder, started: Path) -> None:
    seen = words(Seen(study).html)
    assert "<h2>Start-up</h2>" in seen
    # Columns without a value are named above the table.
    absent = re.search(r"Without a value: ([^.]*Staging[^.]*)\.", seen)[1].split("; ")
    headings = "".join(f'<th scope="col">{c.heading}</th>' for c in SHOWN_COLUMNS if c.heading not in absent)
    assert absent == ["Staging"]
    assert f"Until the first step ended</th>{headings}" in seen
    assert '<td data-label="Imports">6.00 s<span class="sub">4.00–6.00 s</span>' in seen
    assert '<td data-label="Until the first step ended"><b>15.5 s</b></td>' in seen


@pytest.mark.parametrize(
    ("said", "way"),
    [({"way": "sbcast", "broadcast_seconds": 0.5}, "sbcast"), ({}, "tar")],
    ids=["sbcast", "older file"],
)
def test_staging_is_a_separate_part_of_the_start_up(
    study: StudyBuilder, started: Path, said: dict[str, object], way: str
) -> None:
    begin = {"t": CREATED + 2.0, "job_id": "17", "job_started": CREATED}
    staged = {"folder": "/tmp/x", "archive": "/x.tar.gz", "bytes": 1, "seconds": 1.5, **said}
    write_json(started / "attempt-1" / "begin.json", {**begin, "staged": staged})
    row = row_of(study)
    assert (row["job_seconds"], row["stage_seconds"]) == pytest.approx((0.5, 1.5), abs=1e-4)
    assert row["staged"] == way
    assert f'<td data-label="Staging">1.50 s<span class="sub">1.50–1.50 s, {way}</span>' in words(Seen(study).html)


def test_a_rank_of_a_node_whose_clock_is_behind_has_no_launch(study: StudyBuilder, started: Path) -> None:
    start_of(started, 0, PARTS[0], born=-10.0, first_seconds=3.0)
    row = row_of(study)
    # Known for rank 1 only.
    assert (row["launch_seconds_min"], row["launch_seconds_max"]) == pytest.approx((2.0, 2.0), abs=1e-4)


def test_older_logs_are_read_on_without_what_they_do_not_have(study: StudyBuilder, started: Path) -> None:
    write_json(started / "attempt-1" / "begin.json", {"t": CREATED + 2.0, "job_id": "17"})
    for rank in (0, 1):
        older = {"imports": 4.0 + rank, "data": 0.5, "rendezvous_and_build": 2.0}
        start_of(started, rank, older, born=4.0, first_seconds=3.0)
    row = row_of(study)
    assert (row["total_from"], row["slowest_ranks"]) == ("rank", "1")
    assert row["rendezvous_and_build_seconds"] == 2.0
    assert {"launch_seconds", "job_seconds", "interpreter_seconds"}.isdisjoint(row)


def test_without_a_first_step_nothing_is_said(study: StudyBuilder) -> None:
    study.completed(2)
    assert findings_of(read_study(study.folder)).startup == []
