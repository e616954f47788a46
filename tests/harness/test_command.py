from __future__ import annotations

import dataclasses

import pytest
from builders import make_site, make_spec

from harness.command import THREAD_VARIABLES, rank_environment, visible_gpu
from harness.spec import ClusterSpec, Placement
from harness.worker.rendezvous import Rendezvous

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
    # What Slurm gives with --gres=gpu:2 to both tasks of a node; what a second job on that node gets.
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
