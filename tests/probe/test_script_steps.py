"""The probe in a user's PyTorch script: its blocks hold the script's own steps and seconds."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks import Rank, run

pytestmark = pytest.mark.torch
TIMES = ("--times", "times.RANK.json")


def agrees(rank: Rank) -> None:
    """Throughput by the events and by the script's own count, within 2 %."""
    seconds = sum(block["seconds"] for block in rank.measured)
    assert seconds == pytest.approx(rank.script_seconds(), rel=0.02)


def test_plain_loop_stops_at_its_last_step(torch_python: Path, tmp_path: Path) -> None:
    (rank,) = run(tmp_path, torch_python, *TIMES, "--save-every", "7")
    agrees(rank)
    # Steps 7, 14 and 21 follow a checkpoint.
    assert [(b["phase"], b["step"], b["n"]) for b in rank.of("steps")] == [
        ("first", 0, 1),
        ("warmup", 1, 4),
        ("measure", 5, 4),
        ("measure", 10, 4),
        ("measure", 15, 5),
        ("measure", 20, 4),
    ]
    assert all(b["left_out_seconds"] > 0.07 for b in rank.measured if b["n"] == 4)
    assert all(b["samples"] == 8 * b["n"] and b["loss"] > 0 and b["data_seconds"] > 0 for b in rank.measured)
    assert [event["ev"] for event in rank.events][-3:] == ["workload", "protocol", "end"]
    start, workload = rank.one("start"), rank.one("workload")
    assert start["world_size"] == 1
    assert start["parameters"] == 16 * 4 + 4
    assert start["gradient_bytes"] == 4 * 68
    assert (workload["step_of"], workload["handed_out"], workload["accumulation"]) == ("SGD", 8, 1)
    assert rank.one("protocol")["stopped"] == "limit"
    assert rank.one("protocol")["measured_steps"] == 17
    assert (rank.one("end")["steps"], rank.one("end")["samples_seen"]) == (25, 200)
    assert rank.times is not None
    assert len(rank.times["seconds"]) == 25
    assert "last line" not in rank.stdout
    assert "Traceback" not in rank.stderr


def test_ranks_of_ddp_stop_at_the_same_step(torch_python: Path, tmp_path: Path) -> None:
    ranks = run(tmp_path, torch_python, *TIMES, "--ddp", "--accumulate", "4", world_size=2, samples_per_step=64)
    for rank in ranks:
        agrees(rank)
        assert rank.one("start")["world_size"] == 2
        assert rank.one("start")["communication"] == "gloo"
        assert rank.one("end")["steps"] == 25
        assert rank.one("end")["samples"] == 25 * 32
        workload = rank.one("workload")
        assert (workload["handed_out"], workload["accumulation"], workload["epochs"]) == (32, 4, 4)


def test_processes_that_train_alone_are_refused(torch_python: Path, tmp_path: Path) -> None:
    for rank in run(tmp_path, torch_python, world_size=2, expect=1):
        assert rank.stderr.startswith("error: 2 processes each train alone")
        assert "Traceback" not in rank.stderr
