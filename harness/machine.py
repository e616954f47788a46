"""What this machine has, as far as it can be told without a framework. Standard library only."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path


@cache
def gpus() -> tuple[str, ...]:
    """UUIDs of the NVIDIA GPUs that this process may use; empty where there is no driver."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"], capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    uuids = tuple(line.strip() for line in listed.stdout.splitlines() if line.strip().startswith("GPU-"))
    if listed.returncode != 0:
        return ()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return uuids
    # nvidia-smi does not look at CUDA_VISIBLE_DEVICES. Entries are indices or UUIDs (or a prefix of one).
    chosen = []
    for entry in filter(None, visible.split(",")):
        if entry.isdigit() and int(entry) < len(uuids):
            chosen.append(uuids[int(entry)])
        else:
            chosen.extend(uuid for uuid in uuids if uuid.startswith(entry))
    return tuple(chosen)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


@cache
def code_version(project: Path) -> str:
    """The git commit of the project, with '-dirty' when tracked files are edited; 'unknown' outside a checkout."""
    try:
        described = subprocess.run(
            ["git", "-C", str(project), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return described.stdout.strip() or "unknown"
