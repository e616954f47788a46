"""Real runs with every input pipeline train identically."""

from __future__ import annotations

from pathlib import Path

import pytest
from project import Cli
from studies import logged, run_dirs

pytestmark = pytest.mark.torch


def test_training_is_the_same_with_every_pipeline(cli: Cli, tmp_path: Path) -> None:
    small = ("dataset=synthetic", "dataset.train_samples=60", "dataset.test_samples=10", "model=cnn_small", "batch=8")
    few = ("measure=smoke", "measure.warmup_steps=2", "measure.steps=6", "measure.block_steps=2")
    local = ("cluster=local", "cluster.device=cpu", "gpus=1", "measure.probe_steps=1")
    done = cli("harness", "-m", "data.pipeline=harness,framework,device", *small, *few, *local)
    assert done.returncode == 0, done.stdout + done.stderr
    ends = [end["weights_checksum"] for run_dir in run_dirs(tmp_path) for end in logged(run_dir, "end")]
    assert len(ends) == 3
    assert len(set(ends)) == 1
