"""Compute capabilities by the names that sites and drivers use (developer.nvidia.com/cuda-gpus), and the builds that
run on them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from project import PROJECT

from harness.core import gpu_types
from harness.core.gpu_types import Build

NAMES = {
    "k80": (3, 7),
    "Tesla P100-PCIE-16GB": (6, 0),
    "gtx1080ti": (6, 1),
    "v100": (7, 0),
    "Tesla-V100": (7, 0),
    "tesla_v100-sxm2-32gb": (7, 0),
    "v100s": (7, 0),
    "volta32": (7, 0),
    "titan_v": (7, 0),
    "titanrtx": (7, 5),
    "Tesla T4": (7, 5),
    "NVIDIA GeForce RTX 2080 Ti": (7, 5),
    "NVIDIA A100-SXM4-80GB": (8, 0),
    "nvidia_a100_1g.5gb": (8, 0),
    "a30": (8, 0),
    "a10": (8, 6),
    "a10g": (8, 6),
    "rtx_a6000": (8, 6),
    "rtx3090": (8, 6),
    "l4": (8, 9),
    "l40s": (8, 9),
    "geforce_rtx_4090": (8, 9),
    "NVIDIA RTX 6000 Ada Generation": (8, 9),
    "NVIDIA H100 80GB HBM3": (9, 0),
    "NVIDIA GH200 480GB": (9, 0),
    "h200": (9, 0),
    "b200": (10, 0),
    "gb200": (10, 0),
    "rtx5090": (12, 0),
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": (12, 0),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_gpu_by_the_name_that_a_site_or_the_driver_gives_it(name: str) -> None:
    assert gpu_types.capability(name) == NAMES[name]


@pytest.mark.parametrize("name", ["", "mi250", "gpu", "b1000", "xv100", "rtx6000"])
def test_unknown_or_ambiguous_gpu_name_is_not_guessed(name: str) -> None:
    assert gpu_types.capability(name) is None


def test_scripts_can_ask_before_any_environment_is_built() -> None:
    def ask(name: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-S", "-m", "harness.core.gpu_types", name]
        return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=60)

    assert (ask("v100").stdout, ask("v100").returncode) == ("7.0\n", 0)
    unknown = ask("mi250")
    assert (unknown.returncode, unknown.stderr.count("\n")) == (2, 1)
    assert "mi250" in unknown.stderr


# Recorded from real builds: torch.cuda.get_arch_list() of wheels of download.pytorch.org (in the order of their
# TORCH_CUDA_ARCH_LIST), tf.sysconfig.get_build_info() of tensorflow's wheel, MXNet's linux_cu117.cmake.
CU126 = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")
CU130 = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120")
TORCH_CU126 = Build("torch 2.13.0+cu126", "12.6", "9.10.2", CU126)
TORCH_CU130 = Build("torch 2.13.0+cu130", "13.0", "9.20.0", CU130)
TENSORFLOW = Build("tensorflow 2.15.1", "12.2", "8", ("sm_50", "sm_60", "sm_70", "sm_75", "compute_80"))
MXNET = Build("mxnet 1.9.1", "11.7", None, ("sm_50", "sm_60", "sm_70", "sm_80", "sm_86"), last=True)
JAX_12 = Build("jax 0.11.0", "12", "9.10.2.21")


@pytest.mark.parametrize(
    ("build", "fits"),
    [
        (TORCH_CU126, ["6.0", "6.1", "7.0", "7.5", "8.0", "8.6", "8.9", "9.0"]),
        (TORCH_CU130, ["7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "12.0", "12.1"]),
        (TENSORFLOW, ["6.0", "6.1", "7.0", "7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "12.0", "12.1"]),
        (MXNET, ["6.0", "6.1", "7.0", "7.5", "8.0", "8.6", "8.9"]),
        (JAX_12, ["6.0", "6.1", "7.0", "7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "12.0", "12.1"]),
        (replace(JAX_12, cudnn="9.28.0.9"), ["7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "12.0", "12.1"]),
        (Build("jax 0.11.0", "13"), ["7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "12.0", "12.1"]),
        (Build("x", "13.0", None, ("sm_90a", "sm_100f")), ["9.0", "10.0", "10.3"]),
    ],
    ids=lambda value: value.name if isinstance(value, Build) else "",
)
def test_a_build_runs_on_the_gpus_that_it_has_kernels_for(build: Build, fits: list[str]) -> None:
    known = ["6.0", "6.1", "7.0", "7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "10.3", "12.0", "12.1"]
    found = [name for name in known if gpu_types.misfit(build, tuple(map(int, name.split(".")))) is None]
    assert found == fits


@pytest.mark.parametrize(
    ("build", "capability", "why"),
    [
        (TORCH_CU130, (7, 0), f"torch 2.13.0+cu130 with CUDA 13.0 has kernels for {', '.join(CU130)} only"),
        (Build("jax 0.11.0", "13"), (7, 0), "jax 0.11.0 with CUDA 13 starts at 7.5"),
        (
            replace(JAX_12, cudnn="9.28.0.9"),
            (7, 0),
            "jax 0.11.0 with cuDNN 9.28.0.9 starts at 7.5 (cuDNN 9.10 is the last below it)",
        ),
        # Limited by a library rather than the list of kernels: a CUDA 12 build of torch with a newer cuDNN.
        (replace(TORCH_CU126, cudnn="9.11.0"), (7, 0), "torch 2.13.0+cu126 with cuDNN 9.11.0 starts at 7.5"),
        (Build("x", "12.6"), (3, 7), "x with CUDA 12.6 starts at 5.0"),
    ],
)
def test_why_a_build_does_not_run_on_a_gpu(build: Build, capability: tuple[int, int], why: str) -> None:
    assert str(gpu_types.misfit(build, capability)).startswith(why)


def test_what_to_do_names_the_builder_and_the_gpu() -> None:
    build_it = gpu_types.advice(TORCH_CU130, (7, 0), "pytorch")
    assert build_it == "build the environment for it: `GPU=v100 sbatch/env/pytorch.sh`"
    assert "install a compatible build" in gpu_types.advice(TORCH_CU130, (7, 0), "/my/env")
    assert "use another framework" in gpu_types.advice(MXNET, (9, 0), "mxnet")
    assert "GPU=k80" in gpu_types.advice(MXNET, (3, 7), "mxnet")


def test_a_driver_that_is_too_old_for_a_build() -> None:
    said = "torch 2.13.0+cu130 with CUDA 13.0 needs NVIDIA driver 580 or newer; this machine has 535.104.05"
    assert gpu_types.old_driver(TORCH_CU130, "535.104.05") == said
    assert gpu_types.old_driver(TORCH_CU130, "580.65.06") is None
    assert gpu_types.old_driver(TORCH_CU126, "535.104.05") is None
    assert gpu_types.old_driver(TORCH_CU126, "470.82") is not None
    assert gpu_types.old_driver(TORCH_CU130, None) is None
