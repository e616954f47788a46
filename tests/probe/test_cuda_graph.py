"""A script that captures its step in a CUDA graph is measured if the step is named, and refused otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest
from ranks import run

from harness.plan.machine import gpus

pytestmark = [pytest.mark.torch, pytest.mark.skipif(not gpus(), reason="needs an NVIDIA GPU")]
SCRIPT = "cuda_graph.py"


def test_replays_of_a_named_step_are_measured(torch_python: Path, tmp_path: Path) -> None:
    (rank,) = run(tmp_path, torch_python, "times.0.json", script=SCRIPT, step="__main__:train_step")
    assert sum(b["seconds"] for b in rank.measured[:-1]) == pytest.approx(rank.script_seconds(), rel=0.02)
    assert rank.one("start")["device"] == "cuda"
    assert rank.one("protocol")["measured_steps"] == 20


def test_without_a_name_it_is_refused_at_the_capture(torch_python: Path, tmp_path: Path) -> None:
    (rank,) = run(tmp_path, torch_python, "times.0.json", script=SCRIPT, expect=1)
    assert "error: the script captures its step in a CUDA graph" in rank.stderr
    assert "workload.step=<module>:<function>" in rank.stderr
    assert "Traceback" not in rank.stderr
    assert not rank.measured
