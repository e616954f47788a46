"""Compute capabilities by the names that sites and drivers give GPUs (developer.nvidia.com/cuda-gpus)."""

from __future__ import annotations

import subprocess
import sys

import pytest
from project import PROJECT

from harness import gpu_types

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
def test_a_name_that_is_not_known_or_stands_for_several_gpus_is_not_guessed(name: str) -> None:
    assert gpu_types.capability(name) is None


def test_scripts_can_ask_before_any_environment_is_built() -> None:
    def ask(name: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-S", "-m", "harness.gpu_types", name]
        return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=60)

    assert (ask("v100").stdout, ask("v100").returncode) == ("7.0\n", 0)
    unknown = ask("mi250")
    assert (unknown.returncode, unknown.stderr.count("\n")) == (2, 1)
    assert "mi250" in unknown.stderr
