from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from builders import make_site, make_spec

from harness.core.rendezvous import Rendezvous
from harness.core.spec import ClusterSpec, Placement
from harness.node.command import (
    THREAD_VARIABLES,
    not_started,
    profiler_command,
    rank_command,
    rank_environment,
    visible_gpu,
)

RANK_1 = Rendezvous(1, 2, 1, 2, "127.0.0.1", 20001)
CUDA = dataclasses.replace(make_spec(), cluster=ClusterSpec(name="site", device="cuda", cpus_per_gpu=7))


def test_every_thread_pool_gets_the_cores_of_one_rank() -> None:
    env = rank_environment(CUDA, make_site(), RANK_1, {"OMP_NUM_THREADS": "64"})
    assert {env[name] for name in THREAD_VARIABLES} == {"7"}


def test_a_rank_gets_its_rendezvous_the_project_and_what_modules_set() -> None:
    env = rank_environment(make_spec(), make_site(), RANK_1, {"PYTHONHOME": "/x", "PYTHONPATH": "/y", "HOME": "/h"})
    assert env["RANK"] == "1"
    assert env["MASTER_PORT"] == "20001"
    assert env["PYTHONPATH"] == "/project:/y"
    assert "PYTHONHOME" not in env
    assert env["HOME"] == "/h"


@pytest.mark.parametrize(
    ("given", "local_rank", "seen"),
    # What Slurm assigns with --gres=gpu:2 to both tasks of a node, and to a second job on that node.
    [("0,1", 1, "1"), ("2,3", 0, "2"), ("2,3", 1, "3"), ("5", 0, "5"), ("", 1, "1")],
)
def test_each_rank_sees_one_of_the_gpus_that_the_scheduler_gave(given: str, local_rank: int, seen: str) -> None:
    assert visible_gpu(CUDA, make_site(), local_rank, {"CUDA_VISIBLE_DEVICES": given}) == seen


def test_a_cpu_run_sees_no_gpu() -> None:
    assert visible_gpu(make_spec(), make_site(), 0, {"CUDA_VISIBLE_DEVICES": "0,1"}) == ""


def test_ranks_beyond_the_local_gpus_share_them_in_turn() -> None:
    site = make_site(visible_gpus=("GPU-a", "GPU-b"))
    assert [visible_gpu(CUDA, site, rank, {}) for rank in range(3)] == ["GPU-a", "GPU-b", "GPU-a"]


def test_configured_variables_win() -> None:
    spec = dataclasses.replace(CUDA, env={"OMP_NUM_THREADS": "3", "NCCL_ALGO": "Ring"}, placement=Placement(2, 1))
    env = rank_environment(spec, make_site(), RANK_1, {})
    assert (env["OMP_NUM_THREADS"], env["NCCL_ALGO"]) == ("3", "Ring")
    assert "GLOO_SOCKET_IFNAME" not in env


def test_mxnet_takes_no_tf32_in_the_name_of_fp32() -> None:
    """NVIDIA's libraries read the variable when the process starts, so the adapter cannot set it."""
    mxnet = dataclasses.replace(CUDA, framework="mxnet")
    assert rank_environment(mxnet, make_site(), RANK_1, {"NVIDIA_TF32_OVERRIDE": "1"})["NVIDIA_TF32_OVERRIDE"] == "0"
    assert "NVIDIA_TF32_OVERRIDE" not in rank_environment(CUDA, make_site(), RANK_1, {})


def test_nsys_precedes_the_ranks_python_only_if_requested() -> None:
    site, folder = make_site(), Path("/run/attempt-2")
    plain = ["/envs/pytorch/bin/python", "-u", "-m", "harness.worker", "/run", "/run/attempt-2"]
    for trace in ("none", "chrome"):
        profiler = profiler_command(make_spec(trace=trace), folder, 3)
        assert rank_command(site, Path("/run"), folder, {}, profiler=profiler) == plain
    profiler = profiler_command(make_spec(trace="nsys"), folder, 3)
    assert rank_command(site, Path("/run"), folder, {}, profiler=profiler) == [
        "nsys", "profile", "--output=/run/attempt-2/trace.rank3", "--force-overwrite=true",
        "--trace=cuda,nvtx,osrt", "--sample=none", "--cpuctxsw=none", "--wait=primary", *plain,
    ]  # fmt: skip
    contained = rank_command(
        make_site(container=("apptainer", "exec", "image.sif")), Path("/run"), folder, {}, profiler=profiler
    )
    assert contained[:3] == ["apptainer", "exec", "image.sif"]
    assert contained[-len(profiler) - len(plain) :] == [*profiler, *plain]


def test_a_node_without_nsys_says_so_in_one_sentence() -> None:
    missing = FileNotFoundError(2, "No such file or directory")
    said = not_started(["nsys", "profile", "python"], missing, "node7")
    assert said.startswith("trace=nsys, but nsys is not on the PATH of node7: load it there")
    assert not_started(["/envs/x/python"], missing, "node7") == "/envs/x/python: No such file or directory"


def test_a_deterministic_run_gets_the_variables_of_its_framework_and_no_other_run_does() -> None:
    name = "CUBLAS_WORKSPACE_CONFIG"
    assert name not in rank_environment(CUDA, make_site(), RANK_1, {})
    # cuBLAS is deterministic with :4096:8 or :16:8 (cuBLAS documentation, Results Reproducibility).
    deterministic = dataclasses.replace(CUDA, deterministic=True)
    assert rank_environment(deterministic, make_site(), RANK_1, {})[name] == ":4096:8"
    for framework, expected in {
        "mxnet": {"MXNET_ENFORCE_DETERMINISM": "1", "MXNET_CUDNN_AUTOTUNE_DEFAULT": "0"},
        "jax": {"XLA_FLAGS": "--xla_gpu_deterministic_ops=true"},
    }.items():
        env = rank_environment(dataclasses.replace(deterministic, framework=framework), make_site(), RANK_1, {})
        assert {name: env[name] for name in expected} == expected
