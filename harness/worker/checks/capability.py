"""Check at the start that this rank's environment and GPU can do what the run requests."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Optional

from harness.core import gpu_types
from harness.core.errors import RankError
from harness.core.gpu_types import AMPERE, Build, Capability
from harness.core.strategies import packages_of
from harness.worker.record import capture, nvml


class GpuError(RankError):
    """The GPU, its driver or the framework's build cannot do what the run requests; the message is for the user."""


class VersionError(RankError):
    """The framework's version lacks what the run requests; the message is for the user."""


class PackageError(RankError):
    """The environment lacks a package that the run imports; the message is for the user."""


def check_packages(framework: str, strategy: str, environment: str) -> None:
    """Raise PackageError if this interpreter lacks a package that the framework or the strategy needs.

    The command checks this before it launches, except in containers and where jobs load modules or a setup first.
    """
    absent = [name for name in packages_of(framework, strategy) if importlib.util.find_spec(name) is None]
    if absent:
        raise PackageError(
            f"{sys.executable}, which runs framework '{framework}' with strategy={strategy}, has no package "
            f"{' and no '.join(absent)}; {gpu_types.completion(environment)}"
        )


def check(build: Build, environment: str, precision: str, gpu: str, capability: Optional[Capability]) -> None:
    """Raise GpuError if the build has no kernels for the GPU, or the GPU only emulates the precision.

    Args:
        build: The framework's build.
        environment: `spec.environment`.
        gpu: Name of the GPU.
        capability: Compute capability; None if unknown, which passes.
    """
    if capability is None:
        return
    if why := gpu_types.misfit(build, capability):
        what = gpu_types.advice(build, capability, environment)
        raise GpuError(f"{gpu} has compute capability {gpu_types.written(capability)}, and {why}; {what}")
    if precision in ("bf16", "tf32") and capability < AMPERE:
        raise GpuError(
            f"precision={precision}: {gpu} (compute capability {gpu_types.written(capability)}) has no tensor cores "
            "for it; use fp16 or fp32"
        )


def no_gpu(build: Build, environment: str, detail: str = "") -> GpuError:
    """Return the error for a framework that sees no GPU, with the cause as far as the driver tells.

    Args:
        build: The framework's build; without a CUDA version for a CPU build.
        environment: `spec.environment`.
        detail: The framework's own message.
    """
    gpu = nvml.find(capture.gpu_uuid())
    if gpu is not None and build.cuda:
        if old := gpu_types.old_driver(build, gpu.driver):
            what = gpu_types.advice(build, None, environment)
            return GpuError(f"{old}; {what}, or ask for a newer driver")
        try:
            check(build, environment, "fp32", gpu.product or "the GPU", gpu.capability)
        except GpuError as error:
            return error
    said = f" ({detail})" if detail else ""
    kind = "" if build.cuda else ", which is a build without CUDA,"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    given = "" if visible is None else f" with CUDA_VISIBLE_DEVICES={visible}"
    return GpuError(
        f"the run asks for device cuda, but {build.name}{kind} sees no GPU here{given}{said}; "
        "use a CUDA build of it on a GPU node, or set cluster.device=cpu"
    )
