"""The doctor's interpretation of a framework's and Slurm's answers, without starting either."""

from __future__ import annotations

from typing import Any

import pytest

from harness.config.schema import Framework
from harness.doctor import slurm_checks
from harness.doctor.frameworks import judged
from harness.slurm import inventory


@pytest.mark.parametrize(
    ("versions", "seen", "cuda", "gpus", "state", "word"),
    [
        ({"torch": "2+cpu"}, [], False, 4, "ok", "torch 2+cpu"),
        ({"torch": "2+cpu"}, [], True, None, "missing", "GPU=<v100, a100, ...> sbatch/env/pytorch.sh"),
        ({"torch": "2", "cuda": "13.0", "nccl": "2.29"}, [], True, None, "ok", "cuda 13.0, nccl 2.29"),
        ({"torch": "2", "cuda": "13.0"}, ["V100"] * 3, True, 4, "missing", "sees 3 of 4 GPUs"),
        ({"torch": "2", "cuda": "13.0"}, ["V100"] * 4, True, 4, "ok", "sees 4 x V100"),
    ],
)
def test_what_a_framework_must_have(
    versions: dict[str, str], seen: list[str], cuda: bool, gpus: int | None, state: str, word: str
) -> None:
    framework = Framework(name="pytorch", environment="pytorch")
    answer = {"versions": {**versions, "dali": "2.4.0"}, "gpus": seen, "carriers": CARRIERS}
    check = judged("frameworks", answer, framework, "allreduce", cuda, gpus)
    assert check.state == state
    assert word in check.found + check.advice


# Packages needed by PyTorch strategies besides torch.
CARRIERS = {"horovod": "0.28", "mpi4py": "4.1"}
KERNELS = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]


@pytest.mark.parametrize(
    ("seen", "gpu_type", "driver", "found", "advice"),
    [
        (
            [],
            "v100",
            None,
            "v100 has compute capability 7.0, and torch 2.13.0 with CUDA 13.0 has kernels for sm_75, sm_80, sm_86, ",
            "build the environment for it: `GPU=v100 sbatch/env/pytorch.sh`",
        ),
        (
            ["Tesla V100-SXM2-16GB"] * 4,
            None,
            "580.65.06",
            "Tesla V100-SXM2-16GB has compute capability 7.0",
            "GPU=v100",
        ),
        (
            [],
            "a100",
            "535.104.05",
            "torch 2.13.0 with CUDA 13.0 needs NVIDIA driver 580 or newer; this machine has 535.104.05",
            "rebuild the environment on such a node: `sbatch/env/pytorch.sh`, or ask for a newer driver",
        ),
        ([], "h100", None, "", ""),
        ([], None, None, "", ""),
        (["NVIDIA A100-SXM4-80GB"] * 4, "a100", "580.65.06", "", ""),
    ],
)
def test_a_build_that_does_not_run_on_the_clusters_gpus(
    seen: list[str], gpu_type: str | None, driver: str | None, found: str, advice: str
) -> None:
    framework = Framework(name="pytorch", environment="pytorch")
    build = {"name": "torch 2.13.0", "cuda": "13.0", "cudnn": "9.20.0", "architectures": KERNELS, "last": False}
    answer = {"versions": {"torch": "2.13.0", "cuda": "13.0"}, "gpus": seen, "carriers": CARRIERS, "build": build}
    check = judged("frameworks", answer, framework, "allreduce", True, None, "harness", gpu_type, driver)
    assert check.state == ("missing" if found else "ok")
    assert found in check.found
    assert advice in check.advice
    on_cpus = judged("frameworks", answer, framework, "allreduce", False, None, "harness", gpu_type, driver)
    assert on_cpus.state == "ok"


@pytest.mark.parametrize(
    ("name", "has", "strategy", "state", "word"),
    [
        ("pytorch", CARRIERS, "allreduce", "ok", "torch 2, dali 2.4.0, horovod 0.28, mpi4py 4.1"),
        ("jax", {"mpi4py": "4.1"}, "allreduce", "ok", "torch 2, dali 2.4.0, mpi4py 4.1"),
        ("pytorch", {"mpi4py": "4.1"}, "allreduce", "note", "no horovod: strategy=horovod cannot run"),
        ("pytorch", {"mpi4py": "4.1"}, "horovod", "missing", "sbatch/env/pytorch.sh"),
        ("pytorch", {}, "mpi", "missing", "no horovod and no mpi4py: strategy=horovod,mpi cannot run"),
    ],
)
def test_what_a_strategy_needs_beside_the_framework(
    name: str, has: dict[str, str], strategy: str, state: str, word: str
) -> None:
    framework = Framework(name=name, environment=name)
    answer = {"versions": {"torch": "2", "dali": "2.4.0"}, "gpus": [], "carriers": has}
    check = judged("frameworks", answer, framework, strategy, False, None)
    assert check.state == state
    assert word in check.found + check.advice


@pytest.mark.parametrize(
    ("dali", "pipeline", "state", "word"),
    [
        ({}, "harness", "ok", "no NVIDIA DALI: data.pipeline=dali cannot run"),
        ({}, "dali", "missing", "`DALI=1 sbatch/env/pytorch.sh` builds the environment with it"),
        ({"dali": "2.4.0"}, "dali", "ok", "torch 2, dali 2.4.0"),
    ],
)
def test_what_an_input_pipeline_needs_beside_the_framework(
    dali: dict[str, str], pipeline: str, state: str, word: str
) -> None:
    framework = Framework(name="pytorch", environment="pytorch")
    answer = {"versions": {"torch": "2", **dali}, "gpus": [], "carriers": CARRIERS}
    check = judged("frameworks", answer, framework, "allreduce", False, None, pipeline)
    assert check.state == state
    assert word in check.found + check.advice


# Output of `sinfo --format=%G` at real sites; sockets and indices in parentheses are already removed.
@pytest.mark.parametrize(
    ("gres", "name", "kind", "count"),
    [
        ("gpu:v100:4", "gpu", None, 4),
        ("gpu:v100:4", "gpu", "v100", 4),
        ("gpu:v100:4", "gpu", "a100", 0),
        ("gpu:4", "gpu", None, 4),
        ("gpu:4", "gpu", "v100", 0),
        ("gpu:a100-sxm4-80gb:8,mps:400", "gpu", None, 8),
        ("gpu:1g.5gb:2,gpu:3g.20gb:1", "gpu", None, 3),
        ("gpu:1g.5gb:2,gpu:3g.20gb:1", "gpu", "3g.20gb", 1),
        ("", "gpu", None, 0),
        ("gpu", "gpu", None, 0),
    ],
)
def test_gpus_are_counted_as_slurm_writes_them(gres: str, name: str, kind: str | None, count: int) -> None:
    assert inventory.Node("n1", "idle", 8, 64000, gres).count(name, kind) == count


@pytest.mark.parametrize(
    ("text", "expected"),
    [("30:00", 30), ("1:00:00", 60), ("2-12:00:00", 3600), ("0:30", 0.5), ("infinite", None), ("n/a", None)],
)
def test_time_limits_as_slurm_writes_them(text: str, expected: Any) -> None:
    assert inventory.minutes(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("64GB", 65536), ("64g", 65536), ("500", 500), ("2T", 2 * 1024**2), ("2048K", 2), ("lots", None)],
)
def test_memory_as_sbatch_takes_it(text: str, expected: Any) -> None:
    assert inventory.megabytes(text) == expected


@pytest.mark.parametrize(
    ("state", "usable"),
    [
        *[(state, True) for state in ("idle", "mixed", "allocated", "completing", "idle~", "planned")],
        *[(state, False) for state in ("down", "down*", "drained", "draining", "idle*", "maint", "fail", "inval")],
    ],
)
def test_states_of_nodes_that_take_jobs(state: str, usable: bool) -> None:
    assert (slurm_checks.UNUSABLE.match(state) is None) == usable
