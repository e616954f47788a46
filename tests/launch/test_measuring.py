"""The length of real runs, and the cost and effect of their probes: two ranks, real gloo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from project import Cli
from studies import SMALL, logged, read_json, run_dirs

from analysis.read.run import read_run_row
from harness.core.measuring.protocol import Protocol
from harness.core.serialization import from_plain
from harness.core.spec import MeasureSpec

pytestmark = pytest.mark.torch

# A straggler of 50 ms keeps step times nearly constant even on a busy machine.
STEADY = ("fault=slow_rank", "fault.rank=1", "fault.seconds=0.05")
SHORT = ("gpus=2", "cluster=local", *SMALL, "model=cnn_small", "measure.block_steps=1", *STEADY)
PROBED = ("measure.probe_rounds=20", "measure.probe_limit=0.5")


@pytest.fixture(autouse=True)
def _environment(torch_python: Path) -> None:
    """Every test here needs the PyTorch environment."""


def decided(run_dir: Path, attempt: int = 1) -> dict[str, Any]:
    """Return the outcome that both ranks logged, after checking that it follows from their logged blocks."""
    first, second = (logged(run_dir, "protocol", attempt, rank)[0] for rank in range(2))
    outcome = {key: value for key, value in first.items() if key not in ("v", "t", "rank", "ev", "i", "crc")}
    assert {key: second[key] for key in outcome} == outcome
    measure = from_plain(MeasureSpec, read_json(run_dir / "spec.json")["spec"]["measure"])
    protocol = Protocol(measure, 0)
    blocks = [logged(run_dir, "steps", attempt, rank) for rank in range(2)]
    for parts in zip(*blocks, strict=True):
        assert protocol.going
        assert [(part["phase"], part["step"], part["n"]) for part in parts] == [tuple(protocol.parts[0])] * 2
        protocol.add(max(part["seconds"] / part["n"] for part in parts))
    assert not protocol.going
    assert protocol.outcome() == outcome
    return outcome


def test_a_run_stops_when_its_step_time_is_known_and_stays_stopped(cli: Cli, tmp_path: Path) -> None:
    asked = ("measure.precision=0.5", "measure.steps=600", "measure.warmup_limit_steps=12", "measure.probe_steps=0")
    arguments = (*SHORT, *asked, "checkpoint.keep=true")
    done = cli("harness", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    (run_dir,) = run_dirs(tmp_path)
    outcome = decided(run_dir)
    assert outcome["stopped"] == "precision"
    assert outcome["relative_half_width"] <= 0.5
    assert 16 <= outcome["measured_steps"] < 600
    assert 6 < outcome["warmup_steps"] <= 12
    (end,) = logged(run_dir, "end")
    assert end["steps"] == outcome["warmup_steps"] + outcome["measured_steps"]
    row = read_run_row(run_dir)
    assert (row["status"], row["reason"], row["stopped"]) == ("completed", None, "precision")
    assert (row["steps"], row["warmup_steps"]) == (outcome["measured_steps"], outcome["warmup_steps"])
    first = max(logged(run_dir, "steps", 1, rank)[0]["seconds"] for rank in range(2))
    assert row["first_block_seconds"] == first
    # As if a rank had failed after the last checkpoint.
    (run_dir / "result.json").unlink()
    (run_dir / "attempt-1" / "exit.rank1.json").unlink()
    again = cli("harness", *arguments)
    assert again.returncode == 0, again.stdout + again.stderr
    assert logged(run_dir, "steps", 2) == []
    assert logged(run_dir, "end", 2)[0]["weights_checksum"] == end["weights_checksum"]
    (event,) = logged(run_dir, "protocol", 2)
    assert {key: event[key] for key in outcome} == outcome
    report = cli("analysis", "results/scaling", "--only", "html")
    assert "their accuracies are not to be compared" in " ".join(report.stdout.split())
    assert "precise enough" in (tmp_path / "results" / "scaling" / "report.html").read_text()


@pytest.mark.quiet
def test_probes_keep_to_their_limit_and_change_nothing_of_training(cli: Cli, tmp_path: Path) -> None:
    asked = ("measure.precision=1e-9", "measure.steps=40", *PROBED)
    done = cli("harness", "-m", "measure.probe_steps=0,2", *SHORT, *asked)
    assert done.returncode == 0, done.stdout + done.stderr
    runs = {read_json(d / "spec.json")["spec"]["measure"]["probe_steps"]: d for d in run_dirs(tmp_path)}
    for run_dir in runs.values():
        outcome = decided(run_dir)
        assert (outcome["stopped"], outcome["measured_steps"], outcome["stationary"]) == ("limit", 40, None)
    for rank in range(2):
        without, with_probes = (logged(runs[n], "end", 1, rank)[0] for n in (0, 2))
        assert with_probes["weights_checksum"] == without["weights_checksum"], "bit for bit"
        assert with_probes["samples"] == without["samples"]
    assert logged(runs[0], "probes") == logged(runs[0], "probe") == []

    (about,) = logged(runs[2], "probes")
    # 0.64 s per round: 13 steps of the straggler and four messages; at least 4 s before them.
    assert about["rounds"] >= 1
    assert about["skipped"] is None
    assert 0 < about["share"] <= about["limit"] == 0.5
    began = logged(runs[2], "end")[0]["t"]
    assert about["seconds"] == pytest.approx(about["t"] - began, abs=0.1)
    kinds = [(event["round"], event["probe"]) for event in logged(runs[2], "probe")]
    names = ("full", "cached_batch", "one_rank", "no_sync", "allreduce")
    assert kinds == [(number, name) for number in range(about["rounds"]) for name in names]
    # Rank 0 waits for the straggler only if gradients are exchanged.
    own = {name: [e for e in logged(runs[2], "probe", 1, 0) if e["probe"] == name] for name in names}
    assert min(event["seconds"] / event["n"] for event in own["cached_batch"]) > 0.045
    for alone in ("one_rank", "no_sync"):
        assert min(event["seconds"] / event["n"] for event in own[alone]) < 0.045


@pytest.mark.quiet
def test_probes_that_would_take_too_long_are_left_out_and_it_is_said(cli: Cli, tmp_path: Path) -> None:
    done = cli("harness", *SHORT, "measure.probe_limit=0.001", "gpus=1", "fault.rank=0")
    assert done.returncode == 0, done.stdout + done.stderr
    (run_dir,) = run_dirs(tmp_path)
    (about,) = logged(run_dir, "probes")
    assert (about["rounds"], logged(run_dir, "probe")) == (0, [])
    assert about["share"] < 0.01  # only the ranks' agreement costs time
    assert about["skipped"].startswith("one round would take about ")
    assert f"no probes: {about['skipped']}" in read_run_row(run_dir)["notes"]
