"""Describe what a run ran on. Standard library only; environment variables pass an allow-list to exclude secrets."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Dict, List, Optional

from harness.core.measuring.environment import cpu_model, lines, text_of
from harness.core.spec import RunSpec

# Names in /proc/cpuinfo of instructions that multiply bf16, on x86 and Arm.
BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})


def interpreter_seconds() -> Dict[str, float]:
    """Return {"interpreter": seconds since this process started}, to 10 ms; empty if Linux does not report it.

    Covers the start of the interpreter, imports of the harness and NumPy, and a profiler's or container's start before
    it.
    """
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            # Field 22 of proc(5), in clock ticks since boot; counted after the name, which may contain anything.
            ticks = int(file.read().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return {}
    passed = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return {"interpreter": round(passed, 6)} if passed >= 0 else {}


def emulated_precision(spec: RunSpec, cpuinfo: Optional[str] = None) -> List[str]:
    """Return a sentence if the CPU has no instructions for the run's precision, else nothing; nothing on GPUs.

    cpuinfo: contents of /proc/cpuinfo; None for this machine.
    """
    if spec.cluster.device != "cpu" or spec.precision != "bf16":
        return []
    told = (text_of(Path("/proc/cpuinfo")) or "") if cpuinfo is None else cpuinfo
    match = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", told, re.MULTILINE)
    if match is None:
        return [f"precision=bf16: whether {cpu_model() or 'this processor'} has instructions for it is not known"]
    if BF16_FLAGS.intersection(match.group(1).split()):
        return []
    return [
        f"precision=bf16 was emulated: {cpu_model() or 'this processor'} has no instructions for it "
        f"({', '.join(sorted(BF16_FLAGS))})"
    ]


def gpu_uuid() -> Optional[str]:
    """Return the UUID of the GPU visible to this rank, for frameworks that do not report it."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    if not visible.isdigit():  # already the UUID of a GPU or MIG device
        return visible or None
    return next(iter(lines("nvidia-smi", f"--id={visible}", "--query-gpu=uuid", "--format=csv,noheader")), None)


def mig_device() -> Optional[str]:
    """Return the MIG device visible to this rank; None for a whole GPU."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
    return visible if visible.startswith("MIG-") else None
