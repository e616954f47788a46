"""Clocks of nodes that differ, and logs whose times are off, against the same study with right clocks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from file_times import touch_later
from study_builder import CREATED, Logs, StudyBuilder, resume, spec_of

from analysis.read.study import read_study
from analysis.tables.throughput import goodput
from harness.core.spec import Placement

TIMES = ("first_step_seconds", "allocated_seconds", "idle_seconds", "goodput", "wall_seconds")
TWO_NODES = Placement(2, 1)


def shift(run_dir: Path, seconds: float, *names: str) -> None:
    """Move all times of these files of each attempt."""
    for attempt in run_dir.glob("attempt-*"):
        for name in names:
            path = attempt / name
            events = [json.loads(line) for line in path.read_text().splitlines() if path.suffix == ".jsonl"]
            for event in events or [document := json.loads(path.read_text())]:
                event["t"] += seconds
            path.write_text("".join(json.dumps(event) + "\n" for event in events) or json.dumps(document))
            touch_later(path)


def move(run_dir: Path) -> None:
    """Let the first attempt have run on another machine."""
    log = run_dir / "attempt-1" / "events.rank0.jsonl"
    log.write_text(log.read_text().replace('"machine":"boot-0"', '"machine":"boot-7"'))


def times_of(study: StudyBuilder) -> dict[str, Any]:
    (run,) = read_study(study.folder).runs
    times = {name: run[name] for name in TIMES[:3]}
    times["goodput"] = goodput([run.useful_seconds], [run.allocated_seconds])
    return times | {"wall_seconds": run.evaluations[0]["wall_seconds"]}


def built(study: StudyBuilder, strategy: str = "allreduce", placement: Placement = TWO_NODES) -> Path:
    """One run of two ranks, continued after 20 steps."""
    spec = spec_of(2, strategy=strategy, placement=placement)
    begun = {"startup_seconds": {"imports": 2.0, "rendezvous": 0.5, "build": 0.5}}
    first = Logs([1.0], checkpoints={20: 0.5}, ends=False, **begun)
    rest = Logs([1.0, 2.0, 1.0], resume=resume(20, 1), begin=CREATED + 100, accuracy=0.5, **begun)
    return study.attempts(spec, first, rest)


NODE0 = ("begin.json", "events.rank0.jsonl", "exit.rank0.json")
NODE1 = ("events.rank1.jsonl", "exit.rank1.json")


@pytest.mark.parametrize("hours", [1, -1])
@pytest.mark.parametrize("files", [NODE0, NODE1], ids=["node0", "node1"])
@pytest.mark.parametrize("strategy", ["allreduce", "ps_async"])
def test_a_node_whose_clock_is_off_changes_no_time(
    study: StudyBuilder, strategy: str, files: tuple[str, ...], hours: int
) -> None:
    run_dir = built(study, strategy)
    before = times_of(study)
    assert before["allocated_seconds"] == pytest.approx(3 + 9 + 1 + 0.5 + 1 + 3 + 4 + 2 + 1)
    assert None not in before.values()
    shift(run_dir, 3600 * hours, *files)
    assert times_of(study) == pytest.approx(before)
    (run,) = read_study(study.folder).runs
    ahead = "ahead of" if (hours > 0) == (files == NODE1) else "behind"
    assert f"attempt 1: the clock of node1 was 3,600 s {ahead} that of node0: corrected" in run.notes
    assert read_study(study.folder).damage == ()


@pytest.mark.parametrize("hours", [1, -1])
@pytest.mark.parametrize("placement", [TWO_NODES, Placement(1, 2)], ids=["two nodes", "one node"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_log_that_is_off_alone_is_named_and_its_times_are_not_stated(
    study: StudyBuilder, rank: int, placement: Placement, hours: int
) -> None:
    run_dir = built(study, placement=placement)
    shift(run_dir, 3600 * hours, f"events.rank{rank}.jsonl")
    read = read_study(study.folder)
    times = times_of(study)
    assert {times[name] for name in ("first_step_seconds", "allocated_seconds", "goodput", "idle_seconds")} == {None}
    assert {row["kind"] for row in read.damage} & {"clocks apart", "clock went back"}
    assert read.runs[0]["seconds"] == 4.0


def test_a_clock_that_was_set_during_the_run_is_named(study: StudyBuilder) -> None:
    run_dir = study.add(spec_of(2, placement=TWO_NODES), Logs())
    log = run_dir / "attempt-1" / "events.rank1.jsonl"
    events = [json.loads(line) for line in log.read_text().splitlines()]
    for event in events[4:]:
        event["t"] += 3600.0
    log.write_text("".join(json.dumps(event) + "\n" for event in events))
    shift(run_dir, 3600.0, "exit.rank1.json")
    read = read_study(study.folder)
    assert {(row["file"], row["kind"]) for row in read.damage} == {("attempt-1/events.rank1.jsonl", "clocks apart")}
    assert read.runs[0]["allocated_seconds"] is None


def test_a_rank_without_a_step_is_corrected_by_the_rendezvous_and_else_not_used(study: StudyBuilder) -> None:
    """Both ranks crash in their first step; the second node's clock is a day ahead."""
    for seed, parts in enumerate(({"imports": 2.0, "rendezvous": 0.5, "build": 0.5}, {"imports": 3.0})):
        logs = Logs(block_seconds=[], startup_seconds=parts, exit_codes=[1, 1])
        run_dir = study.add(
            spec_of(2, placement=TWO_NODES, seed=seed), logs, {"status": "failed", "reason": "it failed"}
        )
        for rank in (0, 1):
            log = run_dir / "attempt-1" / f"events.rank{rank}.jsonl"
            log.write_text(log.read_text().splitlines()[0] + "\n")
        shift(run_dir, 86400.0 + 5.0, *NODE1)
        ended = run_dir / "attempt-1" / "exit.rank0.json"
        ended.write_text(json.dumps(json.loads(ended.read_text()) | {"t": CREATED + 4.0}))
        ended = run_dir / "attempt-1" / "exit.rank1.json"
        ended.write_text(json.dumps(json.loads(ended.read_text()) | {"t": CREATED + 86405.0 + 6.0}))
    met, alone = sorted(read_study(study.folder).runs, key=lambda run: run.seed)
    assert (met.allocated_seconds, alone.allocated_seconds) == (6.0, 4.0)
    assert "corrected by" in met.notes


def test_time_between_attempts_on_other_nodes_is_said_to_be_uncertain(study: StudyBuilder) -> None:
    first = Logs([1.0], checkpoints={20: 0.5}, ends=False)
    move(study.attempts(spec_of(1), first, Logs([1.0] * 3, resume=resume(20, 1), begin=CREATED + 100)))
    (run,) = read_study(study.folder).runs
    assert run.idle_seconds == pytest.approx(100 - 14.5)
    assert "attempts 1 and 2 shared no node: the time between them is by clocks that could not be compared" in run.notes


def test_attempts_that_contradict_each_other_have_no_time_between_them(study: StudyBuilder) -> None:
    first = Logs([1.0], checkpoints={20: 0.5}, ends=False)
    move(study.attempts(spec_of(1), first, Logs([1.0] * 3, resume=resume(20, 1), begin=CREATED - 3600)))
    (run,) = read_study(study.folder).runs
    assert run.idle_seconds is None
