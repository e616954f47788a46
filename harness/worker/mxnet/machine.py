"""MXNet's view of the machine, and the resources it may use."""

from __future__ import annotations

import ctypes
import os
import re
from importlib import metadata
from typing import Dict, List

import mxnet as mx
import numpy as np

from harness.core.gpu_types import Build
from harness.core.spec import RunSpec
from harness.worker.checks import capability
from harness.worker.record import capture, nvml

# Architectures in the packages on PyPI (config/distribution/linux_cu112.cmake to linux_cu117.cmake of MXNet), which
# MXNet does not report.
ARCHITECTURES = ("sm_50", "sm_60", "sm_70", "sm_80", "sm_86")
OF_CUDA = ("11.2", "11.7")


def versions() -> Dict[str, str]:
    """Return the versions of MXNet and of what it was built with; "cuda" does not imply a GPU."""
    found = {"mxnet": str(mx.__version__), "numpy": np.__version__}
    if mx.runtime.Features().is_enabled("CUDA"):
        found["cuda"] = _cuda_version()
    return found


def build() -> Build:
    """Return what this MXNet was built for; works without a GPU."""
    name = f"mxnet {mx.__version__}"
    if not mx.runtime.Features().is_enabled("CUDA"):
        return Build(name)
    cuda = _cuda_version()
    if cuda not in OF_CUDA:
        return Build(name, None if cuda == "unknown" else cuda, last=True)
    return Build(name, cuda, architectures=ARCHITECTURES, last=True)


def gpus() -> List[str]:
    """Return the names of the GPUs that MXNet can use here."""
    return _names()[: _count()]


def context(spec: RunSpec) -> mx.Context:
    """Return the run's device. Raises GpuError if the requested GPU cannot be used; there is no fallback."""
    if spec.cluster.device == "cpu":
        return mx.cpu()
    if not _count():
        raise capability.no_gpu(build(), spec.environment)
    gpu = nvml.find(capture.gpu_uuid())
    capability.check(build(), spec.environment, spec.precision, gpu_name(), gpu.capability if gpu else None)
    # The launcher makes one GPU visible to each rank.
    return mx.gpu(0)


def gpu_name() -> str:
    return next(iter(_names()), "GPU")


def threads() -> int:
    """Return the number of OpenMP threads, all of which MXNet and oneDNN use for one operator at a time."""
    return int(ctypes.CDLL("libgomp.so.1").omp_get_max_threads())


def _count() -> int:
    try:
        return int(mx.context.num_gpus())
    except mx.MXNetError:  # a CUDA build without a driver
        return 0


def _cuda_version() -> str:
    """Return the CUDA version from the name of the package, such as mxnet-cu112; MXNet does not report it."""
    names = (str(package.metadata["Name"]) for package in metadata.distributions())
    found = next(filter(None, (re.fullmatch(r"mxnet[-_]cu(\d+)(\d)", name) for name in names)), None)
    return f"{found.group(1)}.{found.group(2)}" if found else "unknown"


def _names() -> List[str]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    which = [] if visible is None else [f"--id={visible}"]
    return capture.lines("nvidia-smi", "--query-gpu=name", "--format=csv,noheader", *which)
