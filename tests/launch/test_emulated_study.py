"""A study with framework=emulated from the command line, and its report."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from environments import in_environment
from project import Cli
from studies import logged, run_dirs, study_dir

ARGUMENTS = (
    "framework=emulated", "model=cnn_small", "dataset=synthetic", "batch=4", "cluster=local", "cluster.device=cpu",
    "measure=smoke", "measure.evaluate_samples=0", "measure.probe_limit=10", "framework.options.message_mb=0.5",
)  # fmt: skip


@pytest.mark.torch
@pytest.mark.timeout(240)
def test_a_study_of_it_completes_and_is_marked_everywhere(cli: Cli, tmp_path: Path, torch_python: Path) -> None:
    ran = cli("harness", "-m", "gpus=2", "strategy=allreduce,mpi", *ARGUMENTS)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "memory is an estimate" not in ran.stdout  # there is no network
    runs = run_dirs(tmp_path)
    assert len(runs) == 2
    for run_dir in runs:
        [start] = logged(run_dir, "start")
        assert start["waiting"]["overshoot_seconds"] >= 0  # tests/launch/test_ground_truth.py bounds it
        assert start["gradient_bytes"] == 2**19
        assert {event["loss"] for event in logged(run_dir, "steps")} == {None}
        assert logged(run_dir, "eval") == []
    # The gradients are the classes' shares of the global batch, which add up to 1 whatever transports them.
    gradients = [logged(run_dir, "gradients", rank=rank)[0] for run_dir in runs for rank in (0, 1)]
    assert [(g["sum"], g["magnitude"]) for g in gradients] == [(pytest.approx(1.0), pytest.approx(1.0))] * 4
    shown = cli("analysis", str(study_dir(tmp_path)))
    assert shown.returncode == 0, shown.stderr
    rows = list(csv.DictReader((study_dir(tmp_path) / "scaling.csv").open()))
    assert [("emulated" in row["marks"], row["test_accuracy"]) for row in rows] == [(True, "")] * 2


@pytest.mark.torch
def test_a_run_that_was_cut_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    whole, cut = (
        in_environment("pytorch", "emulated_side", "weights_of", str(tmp_path / name), saved)
        for name, saved in (("whole", 0), ("cut", 3))
    )
    assert whole == cut
    assert sum(whole["weights"]) == pytest.approx(whole["steps"])
    assert len(set(whole["jitter"])) == whole["steps"]
