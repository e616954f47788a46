"""Evaluations during training, on this machine with real ranks and real gloo."""

from __future__ import annotations

import re
from pathlib import Path

import jsonschema
import pytest
from project import PROJECT, Cli
from studies import UNPROBED, logged, losses, read_json, run_dirs, study_dir

pytestmark = pytest.mark.torch

# 8 steps in blocks of 2, of which 2 are warm-up.
SHORT = ("cluster=local", *UNPROBED, "gpus=2")


@pytest.fixture(autouse=True)
def _environment(torch_python: Path) -> None:
    """Every test here needs the PyTorch environment."""


def test_evaluations_come_between_blocks_and_do_not_change_the_training(cli: Cli, tmp_path: Path) -> None:
    runs = []
    for name, every in (("with", "measure.evaluate_every_samples=16"), ("without", "measure.evaluate_every_samples=0")):
        done = cli("harness", *SHORT, every, f"study={name}", "target_accuracy=0.01")
        assert done.returncode == 0, done.stdout + done.stderr
        runs += run_dirs(tmp_path, name)
    evaluated, plain = runs
    # Two steps of 2 x 4 samples are 16.
    assert [(e["step"], e["samples_seen"]) for e in logged(evaluated, "eval")] == [(2, 16), (4, 32), (6, 48), (8, 64)]
    assert [e["step"] for e in logged(plain, "eval")] == [8]
    assert losses(evaluated) == losses(plain)
    assert logged(evaluated, "eval")[-1]["loss"] == logged(plain, "eval")[-1]["loss"]
    study = read_json(study_dir(tmp_path, "with") / "study.json")
    jsonschema.validate(study, read_json(PROJECT / "harness" / "schemas" / "study.schema.json"))
    assert study["invocations"][0]["target_accuracy"] == 0.01
    report = cli("analysis", "results/with", "--only", "csv")
    assert report.returncode == 0, report.stderr
    assert re.search(r"Learning: PyTorch DDP.*1\.0 %.*reached", report.stdout, re.DOTALL)
    assert logged(evaluated, "end")[0]["weights_checksum"] == logged(plain, "end")[0]["weights_checksum"]


@pytest.mark.whole  # in CI, losses after a checkpoint
def test_a_run_that_goes_on_from_a_checkpoint_is_evaluated_there_first(cli: Cli, tmp_path: Path) -> None:
    fault = ("fault=kill_rank", "fault.step=5", "fault.rank=1", "checkpoint.interval_steps=4")
    done = cli("harness", *SHORT, *fault, "checkpoint.max_restarts=1", "measure.evaluate_every_samples=16")
    assert done.returncode == 0, done.stdout + done.stderr
    (run_dir,) = run_dirs(tmp_path)
    first, second = (logged(run_dir, "eval", attempt) for attempt in (1, 2))
    assert [e["step"] for e in first] == [2, 4]
    assert [e["step"] for e in second] == [4, 6, 8]
    assert (second[0]["loss"], second[0]["correct"]) == (first[1]["loss"], first[1]["correct"])
