"""The probe in a user's PyTorch script: its blocks hold the script's own steps and seconds."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks import Rank, run

from analysis.read.log.rank import RankLog
from analysis.read.log.values import MEASURE
from analysis.read.matching import matched_blocks

pytestmark = pytest.mark.torch
TIMES = ("--times", "times.RANK.json")


def agrees(rank: Rank) -> None:
    """Throughput by the events and by the script's own count, within 2 %.

    Without the last block, since to the script its last step takes as long as the probe needs to stop it.
    """
    assert sum(b["seconds"] for b in rank.measured[:-1]) == pytest.approx(rank.script_seconds(), rel=0.02)


def test_plain_loop_stops_at_its_last_step(torch_python: Path, tmp_path: Path) -> None:
    (rank,) = run(tmp_path, torch_python, *TIMES, "--save-every", "7")
    agrees(rank)
    # A checkpoint follows steps 7, 14 and 21; the step after it is measured without it.
    assert [(b["phase"], b["step"], b["n"]) for b in rank.of("steps")] == [
        ("first", 0, 1),
        ("warmup", 1, 4),
        ("measure", 5, 5),
        ("measure", 10, 5),
        ("measure", 15, 5),
        ("measure", 20, 5),
    ]
    assert [b["left_out_seconds"] > 0.04 for b in rank.measured] == [True, True, False, True]
    assert all(b["samples"] == 8 * b["n"] and b["loss"] > 0 and b["data_seconds"] > 0 for b in rank.measured)
    assert [event["ev"] for event in rank.events][-3:] == ["workload", "protocol", "end"]
    start, workload = rank.one("start"), rank.one("workload")
    assert start["world_size"] == 1
    assert start["parameters"] == 16 * 4 + 4
    assert start["gradient_bytes"] == 4 * 68
    assert (workload["step_of"], workload["handed_out"], workload["accumulation"]) == ("SGD", 8, 1)
    assert rank.one("protocol")["stopped"] == "limit"
    assert rank.one("protocol")["measured_steps"] == 20
    assert (rank.one("end")["steps"], rank.one("end")["samples_seen"]) == (25, 200)
    assert rank.times is not None
    assert len(rank.times["seconds"]) == 25
    assert "last line" not in rank.stdout
    assert "Traceback" not in rank.stderr


def test_ranks_of_ddp_stop_at_the_same_step(torch_python: Path, tmp_path: Path) -> None:
    script = ("--ddp", "--accumulate", "4", "--save-every", "4")
    ranks = run(tmp_path, torch_python, *TIMES, *script, world_size=2, samples_per_step=64)
    for rank in ranks:
        agrees(rank)
        assert rank.one("start")["world_size"] == 2
        assert rank.one("start")["communication"] == "gloo"
        assert rank.one("end")["steps"] == 25
        assert rank.one("end")["samples"] == 25 * 32
        workload = rank.one("workload")
        assert (workload["handed_out"], workload["accumulation"], workload["epochs"]) == (32, 4, 5)
    # Rank 0 saves in every block, and rank 1 waits for it: neither is part of the steps' time.
    blocks, unmatched = matched_blocks({number: RankLog.of(rank.events) for number, rank in enumerate(ranks)})
    assert unmatched == ()
    left_out, less = (sum(b["left_out_seconds"] for b in rank.measured) for rank in ranks)
    assert left_out - less > 0.1
    seconds = sum(block.seconds for block in blocks if block.phase == MEASURE)
    assert seconds < sum(b["seconds"] for b in ranks[1].measured) - (left_out - less) / 2


def test_processes_that_train_alone_are_refused(torch_python: Path, tmp_path: Path) -> None:
    for rank in run(tmp_path, torch_python, world_size=2, expect=1):
        assert rank.stderr.startswith("error: 2 processes each train alone")
        assert "Traceback" not in rank.stderr


def test_skipped_steps_count_and_evaluation_is_left_out(torch_python: Path, tmp_path: Path) -> None:
    script = ["--scaler", "--evaluate", "--workers", "1", "--samples", "84"]  # 10 full batches and one of 4
    (rank,) = run(tmp_path, torch_python, *TIMES, *script, steps={"warmup": 5, "block": 5, "last": 30})
    assert rank.times is not None
    rank.times["other"][10::11] = [True] * len(rank.times["other"][10::11])  # the incomplete batches
    agrees(rank)
    assert rank.one("end")["steps"] == 30
    # Step 10 trains on 4 samples, step 11 follows the evaluation of 2 batches.
    assert [(b["step"], b["n"]) for b in rank.measured] == [(5, 5), (10, 3), (15, 5), (20, 3), (25, 5)]
    assert [b["left_out_seconds"] > 0.06 for b in rank.measured] == [False, True, False, True, False]
    assert rank.one("workload")["epochs"] == 3
    assert all(0 < b["loss"] < 10 for b in rank.of("steps"))  # not scaled


@pytest.mark.whole  # in CI, forked workers
def test_spawned_workers_are_not_hooked_and_a_script_may_exit(torch_python: Path, tmp_path: Path) -> None:
    script = ["--workers", "1", "--start-method", "spawn", "--steps", "17", "--exit", "0"]
    (rank,) = run(tmp_path, torch_python, *TIMES, *script, steps={"warmup": 5, "block": 5, "last": None})
    assert len(rank.of("start")) == 1
    assert [(b["step"], b["n"]) for b in rank.measured] == [(5, 5), (10, 5)]
    agrees(rank)
    assert (rank.one("protocol")["stopped"], rank.one("end")["steps"]) == ("script ended", 17)


def test_failing_script_keeps_its_traceback(torch_python: Path, tmp_path: Path) -> None:
    (rank,) = run(tmp_path, torch_python, "--fail", expect=1)
    assert rank.stderr.endswith("ValueError: the data are broken\n")
    assert "scaling_probe" not in rank.stderr
    assert not rank.of("end")


def test_exit_code_of_the_script_is_kept(torch_python: Path, tmp_path: Path) -> None:
    (rank,) = run(tmp_path, torch_python, "--steps", "2", "--exit", "3", expect=3)
    assert not rank.of("end")


def test_script_that_ends_before_it_is_measured_is_refused(torch_python: Path, tmp_path: Path) -> None:
    (rank,) = run(tmp_path, torch_python, "--steps", "4", expect=1)
    assert "error: the script ended after 4 steps, before a block was measured; it must take at least 10" in rank.stderr


def test_batches_that_are_not_as_planned_are_refused(torch_python: Path, tmp_path: Path) -> None:
    (rank,) = run(tmp_path, torch_python, "--batch", "16", expect=1)
    (line,) = rank.stderr.splitlines()
    assert line.startswith("error: 16 samples per step were handed out on this rank (1 batches), but ")
    assert "workload.samples_per_step=8 on 1 ranks is 8" in line


def test_optimizers_in_turn_are_refused_until_one_is_named(torch_python: Path, tmp_path: Path) -> None:
    (rank,) = run(tmp_path, torch_python, script="two_optimizers.py", expect=1)
    assert "error: several optimisers step in turn" in rank.stderr
    assert "SGD (2 steps), Adam (1 steps)" in rank.stderr
    for step, named in (("Adam", "Adam"), ("two_optimizers:train_step", "two_optimizers:train_step")):
        folder = tmp_path / named
        folder.mkdir()
        (rank,) = run(folder, torch_python, script="two_optimizers.py", step=step)
        workload = rank.one("workload")
        assert (workload["step_of"], workload["seen"][:2]) == (named, ["SGD", "Adam"])
        assert rank.one("end")["steps"] == 25
        # Two waits of 10 ms in each iteration.
        assert all(0.1 < b["seconds"] < 0.5 for b in rank.measured if b["n"] == 5)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("zero", "ZeroRedundancyOptimizer"), pytest.param("horovod", "SGD", marks=pytest.mark.whole)],
)
def test_optimizer_inside_of_another_is_no_step(torch_python: Path, tmp_path: Path, kind: str, name: str) -> None:
    (rank,) = run(tmp_path, torch_python, kind, script="nested.py")
    workload = rank.one("workload")
    assert (workload["step_of"], workload["seen"]) == (name, [name])
    assert (workload["handed_out"], workload["accumulation"], workload["epochs"]) == (None, None, None)
    assert rank.one("start")["communication"] == {"zero": "gloo", "horovod": "horovod"}[kind]
    assert all(b["n"] == 5 and 0.05 < b["seconds"] < 0.5 and b["data_seconds"] is None for b in rank.measured)


def test_two_steps_for_each_batch_are_refused(torch_python: Path, tmp_path: Path) -> None:
    (rank,) = run(tmp_path, torch_python, script="two_steps.py", expect=1)
    assert rank.stderr.startswith("error: 4 samples per step were handed out on this rank (1 batches), but ")
