"""Describes the machine: driver, framework builds, clocks. The context for all other sections."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
import time

import torch

from benchmarks.common import ROOT
from benchmarks.gpu_check.figures import Figure
from benchmarks.gpu_check.sections import Ask, NoGpu, Report
from harness.core import gpu_types
from harness.plan.machine import code_version
from harness.worker.record import nvml
from harness.worker.record.capture import cpu_model

# The oldest supported torch.
OLDEST = (2, 7)
SIDE, SECONDS = 8192, 1.0
# nvidia-smi queries and their names.
QUERIES = {
    "driver": "driver_version",
    "memory": "memory.total",
    "power limit": "power.limit",
    "largest SM clock": "clocks.max.sm",
    "persistence": "persistence_mode",
    "MIG": "mig.mode.current",
}


def run(ask: Ask, report: Report) -> None:
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < OLDEST:
        raise NoGpu(f"torch {torch.__version__} is too old for gpu_check; it needs 2.7 or newer ({sys.executable})")
    if not ask.reduced and not torch.cuda.is_available():
        raise NoGpu(
            f"torch {torch.__version__} sees no GPU here; run gpu_check on a node with one, or with --reduced to try "
            "the command itself on the CPU"
        )
    report(Figure("device", ask.device))
    report(Figure("date", str(datetime.date.today())))
    report(Figure("code", code_version(ROOT)))
    host = f"{os.cpu_count()} cores of {cpu_model()}, {platform.system()}, Python {platform.python_version()}"
    if ask.reduced:
        report(Figure("machine", f"no GPU used, {host}, torch {torch.__version__}"))
        return
    _gpu(report, host)


def _gpu(report: Report, host: str) -> None:
    # Imported late, so that a torch too old for the worker is reported as such.
    from harness.worker.pytorch import device

    uuid = str(torch.cuda.get_device_properties(0).uuid)
    name = torch.cuda.get_device_name(0)
    report(Figure("gpu", name))
    report(Figure("machine", f"one {name} (of {torch.cuda.device_count()}), {host}, torch {torch.__version__}"))
    for what, value in _smi(uuid).items():
        report(Figure(what, value))
    report(Figure("CUDA of torch", str(torch.version.cuda)))
    report(Figure("cuDNN of torch", str(device.cudnn_number())))
    if torch.distributed.is_nccl_available():
        report(Figure("NCCL of torch", ".".join(map(str, torch.cuda.nccl.version()))))
    report(Figure("architectures of torch", " ".join(device.build().architectures)))
    found = torch.cuda.get_device_capability(0)
    fits = gpu_types.misfit(device.build(), found) or "yes"
    report(Figure(f"torch has kernels for compute capability {gpu_types.written(found)}", fits, bound="= yes"))
    gpu = nvml.find(uuid)
    rate = _tflops()
    state = gpu.state() if gpu else {}
    report(Figure(f"bf16 product of {SIDE} x {SIDE}, random", rate, "TFLOP/s"))
    for key, unit in (("clocks_sm_mhz", "MHz"), ("clocks_memory_mhz", "MHz"), ("temperature_c", "C"), ("power_w", "W")):
        if state.get(key) is not None:
            report(Figure(f"{key.rpartition('_')[0]} after it", state[key], unit))
    report(Figure("throttled after it", ", ".join(state.get("throttle") or []) or "no"))


def _tflops() -> float:
    """Runs long enough for the clocks to rise."""
    a, b = (torch.randn(SIDE, SIDE, device="cuda").bfloat16() for _ in range(2))
    out = torch.mm(a, b)
    torch.cuda.synchronize()
    count, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < SECONDS:
        for _ in range(10):
            torch.mm(a, b, out=out)
        torch.cuda.synchronize()
        count += 10
    return 2 * SIDE**3 * count / (time.perf_counter() - begin) / 1e12


def _smi(uuid: str) -> dict[str, str]:
    """Empty if nvidia-smi is missing or does not answer."""
    query = f"--query-gpu={','.join(QUERIES.values())}"
    command = ["nvidia-smi", f"--id=GPU-{uuid}", query, "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    values = [value.strip() for value in done.stdout.strip().split(",")]
    return dict(zip(QUERIES, values, strict=True)) if done.returncode == 0 and len(values) == len(QUERIES) else {}
