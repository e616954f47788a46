"""Sections for tests/test_gpu_check.py, and the part of gpu_check that needs PyTorch."""

from __future__ import annotations

import os
import subprocess
import time
from typing import Any

from benchmarks.gpu_check.figures import Figure


def hang(ask: Any, report: Any) -> None:
    """Never end, and start a process in its own session that does not end either."""
    report(Figure("a figure before it hangs", 1.0, "s"))
    started = subprocess.Popen(["sleep", "600"], start_new_session=True)
    report(Figure("process", float(started.pid)))
    time.sleep(600)


def crash(ask: Any, report: Any) -> None:
    report(Figure("a figure before it crashes", 2.0, "s", bound="≤ 3"))
    os.abort()


def fail(ask: Any, report: Any) -> None:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


def wrong(ask: Any, report: Any) -> None:
    report(Figure("difference", float("nan"), bound="≤ 1"))


def right(ask: Any, report: Any) -> None:
    report(Figure("difference", 0.5, interval=(0.1, 0.9), n=8, bound="≤ 1"))


def integrals() -> list[float]:
    from benchmarks.gpu_check import energy

    constant, ramp = [(0.5, 10.0), (1.5, 10.0)], [(0.0, 0.0), (1.0, 100.0), (2.0, 200.0)]
    return [energy.integral(samples, 0.0, 2.0) for samples in (constant, ramp)]
