"""How a run was measured, in the report: its first step, why its steps ended, its probes in rounds."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from study_builder import Logs, StudyBuilder, spec_of

from analysis.measures.speedup import points_of
from analysis.read.columns.protocol import probe_columns, protocol_columns, protocol_notes
from analysis.read.log.rank import RankLog
from analysis.read.study import read_study
from analysis.tables.warnings import WANDERING

OUTCOME = {
    "ev": "protocol",
    "stopped": "precision",
    "relative_half_width": 0.015,
    "precision": 0.02,
    "warmup_steps": 60,
    "stationary": True,
    "measured_steps": 80,
}
PROBES = {"ev": "probes", "rounds": 2, "seconds": 3.0, "share": 0.08, "limit": 0.1, "skipped": None}


def ranks_of(*logs: list[dict[str, Any]]) -> dict[int, RankLog]:
    return {number: RankLog.of(events) for number, events in enumerate(logs)}


def probe(name: str, seconds: float, number: int | None = None, **extra: int) -> dict[str, Any]:
    """Make a probe event of two steps."""
    placed = {} if number is None else {"round": number}
    return {"ev": "probe", "probe": name, "n": 2, "seconds": seconds, **placed, **extra}


def rewritten(run_dir: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    for path in run_dir.glob("attempt-*/events.rank*.jsonl"):
        events = [json.loads(line) for line in path.read_text().splitlines()]
        change(events)
        path.write_text("".join(json.dumps(event) + "\n" for event in events))


def with_event(run_dir: Path, values: Mapping[str, Any]) -> None:
    rewritten(run_dir, lambda events: events.insert(-1, {**events[-1], **values}))


def test_probes_are_the_slowest_rank_and_the_mean_of_each_round() -> None:
    first = [probe("no_sync", 0.2, 0), probe("full", 1.0, 0), probe("no_sync", 0.4, 1), probe("full", 1.2, 1)]
    second = [probe("no_sync", 0.6, 0), probe("full", 1.0, 0), probe("no_sync", 0.2, 1), probe("full", 1.4, 1)]
    message = [probe("allreduce", 0.1, 0, bytes=1024)]
    found = json.loads(probe_columns(ranks_of(first + message, second + message))["probes"])
    assert list(found) == ["full", "no_sync", "allreduce"]
    assert found["full"] == {"slowest": [0.5, 0.7], "mean": [0.5, pytest.approx(0.65)]}
    assert found["no_sync"] == {"slowest": [0.3, 0.2], "mean": [pytest.approx(0.2), pytest.approx(0.15)]}
    assert found["allreduce"] == {"slowest": [0.05], "mean": [0.05], "bytes": 1024}


def test_rounds_and_probes_missing_on_a_rank_are_left_out() -> None:
    first = [probe("full", 1.0, 0), probe("full", 1.2, 1), probe("no_sync", 1.0, 0)]
    columns = probe_columns(ranks_of(first, [probe("full", 1.4, 1)]))
    assert json.loads(columns["probes"]) == {"full": {"slowest": [0.7], "mean": [pytest.approx(0.65)]}}
    assert "no_sync_seconds" not in columns


def test_older_logs_have_their_probes_in_the_order_of_the_log() -> None:
    columns = probe_columns(ranks_of([probe("cached_batch", 1.0), probe("cached_batch", 2.0)]))
    assert json.loads(columns["probes"]) == {"cached_batch": {"slowest": [0.5, 1.0], "mean": [0.5, 1.0]}}
    assert columns["cached_batch_seconds"] == 0.75


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "stopped at a half-width of 1.5 % of the step time, 2 % was asked for"),
        ({"stopped": "limit", "relative_half_width": 0.04}, "limit of steps: half-width 4.0 %, 2 % was asked for"),
        ({"stopped": "limit", "relative_half_width": None}, "limit of steps: half-width not known, 2 %"),
        ({"stationary": False}, "not stationary: the step time had not come to rest when the warm-up reached its"),
    ],
)
def test_report_states_how_the_steps_ended(changes: dict[str, Any], words: str) -> None:
    assert words in "; ".join(protocol_notes(ranks_of([{**OUTCOME, **changes}, PROBES])))


def test_fixed_steps_need_no_note() -> None:
    ranks = ranks_of([{**OUTCOME, "stopped": "limit", "precision": None, "stationary": None}, PROBES])
    assert protocol_notes(ranks) == []
    assert protocol_columns(ranks)["probe_share"] == 0.08


@pytest.mark.parametrize(
    "damaged",
    [
        {**OUTCOME, "stopped": ["x"]},
        {**OUTCOME, "stationary": "yes"},
        {**PROBES, "rounds": -1},
        {**PROBES, "share": "much"},
    ],
)
def test_damaged_events_are_counted_and_not_used(damaged: dict[str, Any]) -> None:
    ranks = ranks_of([damaged])
    assert ranks[0].damaged == 1
    assert protocol_columns(ranks) == {}


def test_the_first_step_is_in_no_throughput_and_stated_of_the_slowest_rank(study: StudyBuilder) -> None:
    plain = study.add(spec_of(2, seed=7), Logs())
    run_dir = study.add(spec_of(2), Logs())

    def cut_off(events: list[dict[str, Any]]) -> None:
        at = next(i for i, event in enumerate(events) if event["ev"] == "steps")
        whole = events[at]
        first = {**whole, "phase": "first", "n": 1, "samples": 128, "seconds": 8.0 + whole["rank"]}
        events[at : at + 1] = [first, {**whole, "step": 1, "n": 9, "samples": 9 * 128, "seconds": 1.0}]

    rewritten(run_dir, cut_off)
    runs = {run["run_id"]: run for run in read_study(study.folder).runs}
    run, other = runs[run_dir.name], runs[plain.name]
    assert (run["status"], run["first_block_seconds"]) == ("completed", 9.0)
    assert (run["seconds"], run["samples"]) == (other["seconds"], other["samples"])
    assert other["first_block_seconds"] is None


def test_point_with_nonstationary_or_unequally_long_runs_is_marked(
    study: StudyBuilder, analyse: Callable[..., Any]
) -> None:
    run_dir = study.add(spec_of(1), Logs(accuracy=0.5))
    with_event(run_dir, {**OUTCOME, "stationary": False})
    with_event(run_dir, PROBES)
    longer = study.add(spec_of(1, seed=7), Logs(block_seconds=[1.0] * 6, accuracy=0.6))
    (point,) = points_of(read_study(study.folder).runs)
    assert point.marks == ("not stationary", "unequal training")
    assert (point.test_accuracy, point.samples_seen) == (pytest.approx(0.55), None)
    done = analyse(study.folder)
    assert done.returncode == 0, done.stderr
    page = (study.folder / "report.html").read_text()
    assert "How it was measured" in page
    assert "precise enough" in page
    assert "unequal training" in page
    assert longer.name in page


def test_a_run_that_wanders_is_marked_at_the_limit_only_and_not_with_few_blocks(study: StudyBuilder) -> None:
    wave = [1 + 0.1 * math.sin(block / 15) for block in range(60)]
    ended = {**OUTCOME, "stopped": "limit", "relative_half_width": 0.3}
    for gpus, seconds, outcome in ((1, wave, ended), (2, wave, OUTCOME), (3, wave[:40], ended), (4, [1.0] * 60, ended)):
        with_event(study.add(spec_of(gpus), Logs(block_seconds=seconds)), outcome)
    points = points_of(read_study(study.folder).runs)
    assert [WANDERING in point.marks for point in points] == [True, False, False, False]
    assert "1 of 1 runs reached measure.steps within 3.0 autocorrelation times, and" in points[0].notes
