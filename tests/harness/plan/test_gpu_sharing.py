"""Ranks that share a GPU, which NCCL rejects: the plan's fallback."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpus import MIG, PLAIN, machine_of
from project import Cli

from harness.plan.gpu_sharing import is_shared, sharing_note
from harness.plan.machine import Device

ONE = PLAIN.splitlines(keepends=True)[0]
PARTS = "".join(MIG.splitlines(keepends=True)[:3])
PLAN = (
    "plan_only=true",
    "dataset=synthetic",
    "framework.environment=/usr/bin/env",
    "cluster=local",
    "baseline=wrapped",
)


def devices(*boards: str) -> list[Device]:
    return [Device(f"{board}-{number}", board) for number, board in enumerate(boards)]


def test_ranks_share_where_there_are_fewer_gpus_or_only_parts_of_one() -> None:
    assert not is_shared(2, devices("a", "b"))
    assert not is_shared(2, [])
    assert is_shared(3, devices("a", "b"))
    assert is_shared(2, devices("a", "a"))
    assert not is_shared(1, devices("a", "a"))
    assert sharing_note(2, devices("a", "b")) is None
    assert sharing_note(3, devices("a", "b")) == "3 ranks share 2 GPUs"
    assert sharing_note(3, devices("a", "a")) == "3 ranks share 2 parts of 1 GPU"
    assert sharing_note(2, devices("a", "a")) == "2 ranks use parts of 1 GPU (MIG)"


@pytest.mark.parametrize("listing", [ONE, PARTS])
@pytest.mark.parametrize("strategy", ["allreduce", "local_sgd", "mpi", "ps_sync"])
def test_pytorch_goes_on_without_nccl_and_is_marked(cli: Cli, tmp_path: Path, listing: str, strategy: str) -> None:
    here = machine_of(tmp_path, listing)
    done = cli("harness", *PLAN, "gpus=2", f"strategy={strategy}", "cluster.cpus_per_gpu=1", env=here)
    assert done.returncode == 0, done.stderr
    assert "oversubscribed: 2 ranks " in done.stdout
    # With two GPUs there is no message.
    apart = cli("harness", *PLAN, "gpus=2", f"strategy={strategy}", env=machine_of(tmp_path, PLAIN))
    assert "ranks share" not in apart.stdout


REFUSED = [
    ("pytorch", "fsdp", (), "strategy=allreduce or local_sgd"),
    ("pytorch", "hierarchical", (), "strategy=allreduce or local_sgd"),
    ("pytorch", "horovod", (), "(mpi, ps_sync, ps_async, ps_mixed, ssp)"),
    ("pytorch", "allreduce", ("strategy.options.compress=fp16",), "does not support strategy.options.compress=fp16"),
    ("pytorch", "allreduce", ("strategy.options.overlap=false",), "does not support strategy.options.overlap=false"),
    (
        *("pytorch", "allreduce"),
        ("framework.options.compile=true", "framework.options.compile_mode=reduce-overhead"),
        "does not support framework.options.compile_mode=reduce-overhead",
    ),
    (
        *("pytorch", "allreduce"),
        ("framework.options.fused=true", "framework.options.cuda_graph=true", "measure.warmup_steps=20"),
        "does not support framework.options.cuda_graph=true",
    ),
    ("tensorflow", "allreduce", (), "framework=pytorch with strategy=allreduce"),
    ("keras", "horovod", (), "framework=pytorch with strategy=allreduce"),
    ("jax", "allreduce", (), "framework=pytorch with strategy=allreduce"),
    ("mxnet", "horovod", (), "(allreduce, mpi, ps_sync, ps_async, ps_mixed)"),
]


@pytest.mark.parametrize(("framework", "strategy", "options", "says"), REFUSED)
def test_options_that_need_nccl_are_rejected_with_advice(
    cli: Cli, tmp_path: Path, framework: str, strategy: str, options: tuple[str, ...], says: str
) -> None:
    asked = (f"framework={framework}", f"strategy={strategy}", "framework.environment=/usr/bin/env", *options)
    done = cli("harness", *PLAN, "gpus=2", *asked, env=machine_of(tmp_path, ONE))
    assert done.returncode == 2, done.stdout
    assert "Traceback" not in done.stderr
    assert "gpus=2 on the 1 GPU of this machine: ranks share a GPU, which NCCL does not support" in done.stderr
    assert "use gpus=1" in done.stderr
    assert says in done.stderr
