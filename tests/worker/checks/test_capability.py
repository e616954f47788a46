"""A rank whose GPU, driver or build cannot do what the run requests fails at the start with one sentence."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from environments import in_environment
from gpus import PLAIN, machine_of
from project import Cli
from studies import SMALL, read_json, run_dirs

from harness.core.gpu_types import Build
from harness.worker.checks import capability
from harness.worker.record import capture, nvml

ENVIRONMENTS = {"pytorch": "pytorch", "tensorflow": "tensorflow", "keras": "tensorflow", "jax": "jax", "mxnet": "mxnet"}
# Builds of each framework without kernels for a V100 (cudnn as the framework reports it), and the expected messages.
CU130 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]
UNFIT = {
    "pytorch": (
        {"cuda": "13.0", "cudnn": 92000, "architectures": CU130},
        "with CUDA 13.0 has kernels for sm_75, sm_80",
    ),
    "tensorflow": (
        {"cuda": "12.5", "cudnn": "9", "architectures": ["sm_80", "compute_90"]},
        "with CUDA 12.5 has kernels for sm_80, compute_90 only",
    ),
    "keras": (
        {"cuda": "12.5", "cudnn": "9", "architectures": ["sm_80", "compute_90"]},
        "with CUDA 12.5 has kernels for sm_80, compute_90 only",
    ),
    "jax": ({"cuda": "12", "cudnn": "9.28.0.9"}, "with cuDNN 9.28.0.9 starts at 7.5"),
}
FIT = {
    "pytorch": {"cuda": "12.6", "cudnn": 91002, "architectures": ["sm_60", "sm_70", "sm_80"]},
    "tensorflow": {"cuda": "12.2", "cudnn": "8", "architectures": ["sm_60", "sm_70", "compute_80"]},
    "keras": {"cuda": "12.2", "cudnn": "8", "architectures": ["sm_60", "sm_70", "compute_80"]},
    "jax": {"cuda": "12", "cudnn": "9.10.2.21"},
    "mxnet": {"cuda": "11.7"},
}
V100, H100, A100 = [7, 0], [9, 0], [8, 0]


def told(framework: str, *arguments: Any) -> str:
    return str(in_environment(ENVIRONMENTS[framework], "capability_side", "told", framework, *arguments))


@pytest.mark.parametrize("framework", UNFIT)
def test_a_rank_on_a_gpu_that_the_build_has_no_kernels_for_ends_with_both_named(framework: str) -> None:
    build, why = UNFIT[framework]
    said = told(framework, V100, build, "fp32")
    assert said.startswith("Tesla V100-SXM2-16GB has compute capability 7.0, and ")
    assert why in said
    assert said.endswith(f"`GPU=v100 sbatch/env/{ENVIRONMENTS[framework]}.sh`")
    assert "\n" not in said


def test_mxnet_has_no_build_for_gpus_after_ampere() -> None:
    said = told("mxnet", H100, FIT["mxnet"], "fp32")
    assert "has kernels for sm_50, sm_60, sm_70, sm_80, sm_86 only; no newer build of it exists" in said


@pytest.mark.parametrize("framework", FIT)
@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_no_framework_takes_a_precision_that_the_gpu_only_emulates(framework: str, precision: str) -> None:
    said = told(framework, V100, FIT[framework], precision)
    assert said == (
        f"precision={precision}: Tesla V100-SXM2-16GB (compute capability 7.0) has no tensor cores for it; "
        "use fp16 or fp32"
    )


@pytest.mark.parametrize("framework", FIT)
@pytest.mark.parametrize(("gpu", "precision"), [(V100, "fp32"), (A100, "bf16")])
def test_a_gpu_that_does_what_the_run_asks_for_is_taken(framework: str, gpu: list[int], precision: str) -> None:
    assert told(framework, gpu, FIT[framework], precision) == "accepted"


@pytest.mark.parametrize("framework", FIT)
def test_without_a_gpu_every_framework_says_the_same(framework: str) -> None:
    said = told(framework, V100, None, "fp32")
    if said == "accepted":
        pytest.skip(f"{framework} sees a GPU here")
    assert said.startswith("the run asks for device cuda, but ")
    assert " sees no GPU here" in said
    assert said.endswith("use a CUDA build of it on a GPU node, or set cluster.device=cpu")


@pytest.mark.parametrize("framework", FIT)
def test_every_framework_tells_what_it_was_built_for(framework: str) -> None:
    build = Build(**in_environment(ENVIRONMENTS[framework], "capability_side", "build_of", framework))
    assert build.name.split(" ")[0] == {"pytorch": "torch", "keras": "tensorflow"}.get(framework, framework)
    assert build.cuda is not None or not build.architectures


# A driver with only the queries used here (signatures of nvml.h).
DRIVER = """
#include <string.h>
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) { *device = (void *)1; return strncmp(uuid, "GPU-", 4); }
int nvmlDeviceGetName(void *device, char *name, unsigned n) { strncpy(name, "Tesla V100-SXM2-16GB", n); return 0; }
int nvmlSystemGetDriverVersion(char *version, unsigned n) { strncpy(version, "535.104.05", n); return 0; }
int nvmlDeviceGetCudaComputeCapability(void *d, int *major, int *minor) { *major = 7; *minor = 0; return 0; }
int nvmlDeviceGetMaxClockInfo(void *device, int kind, unsigned *clock) { *clock = 1530; return 0; }
"""


@pytest.fixture
def old_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node with a V100 and driver 535."""
    (tmp_path / "nvml.c").write_text(DRIVER)
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "nvml.c")], check=True)
    monkeypatch.setattr(nvml.find, "__defaults__", (str(library),))
    monkeypatch.setattr(capture, "gpu_uuid", lambda: "GPU-1")


def test_what_the_driver_says_of_a_gpu(old_driver: None) -> None:
    gpu = nvml.find("GPU-1")
    assert gpu is not None
    assert (gpu.product, gpu.driver, gpu.capability) == ("Tesla V100-SXM2-16GB", "535.104.05", (7, 0))


def test_where_no_gpu_is_seen_because_the_driver_is_too_old_that_is_said(old_driver: None) -> None:
    assert str(capability.no_gpu(Build("torch 2.13.0", "13.0"), "pytorch")) == (
        "torch 2.13.0 with CUDA 13.0 needs NVIDIA driver 580 or newer; this machine has 535.104.05; rebuild "
        "the environment on such a node: `sbatch/env/pytorch.sh`, or ask for a newer driver"
    )


def test_where_a_framework_leaves_a_gpu_out_that_it_has_no_kernels_for_that_is_said(old_driver: None) -> None:
    said = str(capability.no_gpu(Build("tensorflow 2.18.0", "12.5", "9", ("sm_80",)), "/my/environment"))
    assert said.startswith("Tesla V100-SXM2-16GB has compute capability 7.0, and tensorflow 2.18.0 with CUDA 12.5")
    assert said.endswith(
        "install a compatible build in the environment '/my/environment', or set framework.environment to one"
    )


PRETEND = f"""
import torch
torch.version.cuda = "13.0"
torch._C._cuda_getArchFlags = lambda: "{" ".join(CU130)}"
torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: 1
torch.cuda.set_device = lambda _: None
torch.cuda.get_device_capability = lambda _: (7, 0)
torch.cuda.get_device_name = lambda _: "Tesla V100-SXM2-16GB"
"""


@pytest.mark.torch
def test_the_sentence_is_the_last_that_a_failed_run_says(cli: Cli, tmp_path: Path, torch_python: Path) -> None:
    """Real launch and real ranks; only torch's report of its build and GPU is replaced."""
    (tmp_path / "pretend").mkdir()
    (tmp_path / "pretend" / "sitecustomize.py").write_text(PRETEND)
    _program(tmp_path / "python", f'PYTHONPATH="$PYTHONPATH:{tmp_path}/pretend" exec {torch_python} "$@"')
    environ = machine_of(tmp_path, PLAIN)
    asked = ("cluster=local", *SMALL, "batch=16", "gpus=2", "cluster.device=cuda", "cluster.cpus_per_gpu=1")
    done = cli("harness", *asked, f"framework.environment={tmp_path}/python", env=environ)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "exited with code 1: Tesla V100-SXM2-16GB has compute capability 7.0, and torch" in done.stdout
    assert "Traceback" not in done.stdout
    (run_dir,) = run_dirs(tmp_path)
    assert "has kernels for sm_75, sm_80" in read_json(run_dir / "result.json")["stderr_tail"][-1]


@pytest.mark.torch
def test_a_run_in_an_environment_without_its_packages_says_which(cli: Cli, project: Path, environments: None) -> None:
    python = project / ".envs" / "jax" / "bin" / "python"
    asked = ("cluster=local", *SMALL, "batch=16", "strategy=horovod", f"framework.environment={python}")
    done = cli("harness", *asked)
    assert done.returncode == 1, done.stdout + done.stderr
    said = done.stdout.partition("exited with code 1: ")[2]
    assert "framework 'pytorch' with strategy=horovod, has no package torch and no horovod; rebuild it" in said
    assert "Traceback" not in done.stdout


def test_a_run_in_an_empty_environment_says_what_it_lacks(cli: Cli, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "empty"], check=True)
    done = cli("harness", "cluster=local", *SMALL, "batch=16", f"framework.environment={tmp_path}/empty")
    assert done.returncode == 1, done.stdout + done.stderr
    said = done.stdout.partition("exited with code 1: ")[2]
    assert "framework 'pytorch' with strategy=allreduce, has no package numpy and no torch; install" in said
    assert "Traceback" not in done.stdout


def _program(path: Path, body: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
