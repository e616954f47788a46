"""What carries gradients, and how a run describes it (other half: tests/worker/sides/transports_side.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from environments import in_environment, trains_on_cpus
from project import Cli

from harness.plan.machine import gpus

pytestmark = pytest.mark.torch


def side(function: str, *arguments: Any) -> Any:
    return in_environment("pytorch", "transports_side", function, *arguments)


def test_horovod_says_what_carries_gradients_and_what_carries_control() -> None:
    if not trains_on_cpus("horovod"):
        pytest.skip("the PyTorch environment is without Horovod")
    found = side("horovod_names")
    nccl = found.pop("built") == "True"
    for controller in ("gloo", "mpi"):
        through_host = f"Horovod over {controller}, through the host's memory"
        by_nccl = f"nccl, control over {controller}"
        assert found[f"cpu {controller} here"] == f"Horovod over {controller}"
        assert found[f"cpu {controller} nccl"] == controller
        assert found[f"cuda {controller} here"] == (f"Horovod over {by_nccl}" if nccl else through_host)
        assert found[f"cuda {controller} nccl"] == by_nccl


def test_ranks_that_share_a_gpu_go_over_gloo() -> None:
    found = side("carriers")
    assert found["cuda True"] == ["gloo", "gloo, ranks share a GPU"]
    assert found["cuda False"] == ["nccl", "nccl"]
    assert found["cpu False"] == found["cpu True"] == ["gloo", "gloo"]


def test_two_ranks_on_one_gpu_train(cli: Cli, torch_python: Path, tmp_path: Path) -> None:
    if len(gpus()) != 1:
        pytest.skip("needs a machine with exactly one NVIDIA GPU")
    small = ("model=cnn_small", "dataset=synthetic", "batch=4", "measure=smoke", "baseline=wrapped")
    done = cli(
        "harness", "-m", "gpus=2", "strategy=allreduce,local_sgd", *small, "cluster=local", "cluster.device=cuda"
    )
    assert "2 completed, 0 failed" in done.stdout, done.stdout + done.stderr
    for run_dir in (tmp_path / "results" / "scaling" / "runs").iterdir():
        log = (run_dir / "attempt-1" / "events.rank0.jsonl").read_text(encoding="utf-8")
        assert "gloo, ranks share a GPU" in log


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_mpi_keeps_its_buffers_in_the_hosts_memory(device: str) -> None:
    if device == "cuda" and not side("has_gpu"):
        pytest.skip("torch sees no GPU")
    found = side("through_host", device)
    assert found["right"] == [True] * 6
    assert found["calls"] == 12
    assert found["buffers"] == 4, "one for each size and type, kept"
    assert found["pinned"] == [device == "cuda"] * 4
