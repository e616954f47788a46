"""PyTorch's strategies as a user asks for them: one study, and what its report says of their work."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from project import Cli
from studies import logged, run_dirs, study_dir

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]

SYNCHRONOUS = ("allreduce", "hierarchical", "hybrid", "zero1", "fsdp", "pipeline", "tensor")
NEVER_ALONE = ("fsdp", "pipeline", "tensor")  # their ranks cannot take a step without one another
SHORT = ("model=cnn_small", "dataset=synthetic", "batch=8", "measure=smoke", "cluster=local", "cluster.device=cpu")


def test_a_study_of_strategies_says_which_did_the_same_work(cli: Cli, tmp_path: Path) -> None:
    strategies = ",".join((*SYNCHRONOUS, "local_sgd"))
    done = cli("harness", "-m", f"strategy={strategies}", "gpus=2", *SHORT, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(SYNCHRONOUS) + 1} completed, 0 failed" in done.stdout
    for run_dir in run_dirs(tmp_path):
        probes = {event["probe"] for event in logged(run_dir, "probe")}
        assert ("no_sync" in probes) == (run_dir.name.split("-")[1] not in NEVER_ALONE)
        [evaluation] = logged(run_dir, "eval")
        assert evaluation["samples"] == 256
    report = cli("analysis", "results/scaling")
    assert report.returncode == 0, report.stdout + report.stderr
    with open(study_dir(tmp_path) / "equal_work.csv", encoding="utf-8") as file:
        verdicts = {row["strategy"]: row["verdict"] for row in csv.DictReader(file)}
    assert verdicts.pop("allreduce") == "reference"
    assert "with local_sgd the ranks take their steps apart" in verdicts.pop("local_sgd")
    compared = "not checked: only the first gradient was compared; verify=true was not asked for"
    assert verdicts == dict.fromkeys(set(SYNCHRONOUS) - {"allreduce"}, compared)
