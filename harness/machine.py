"""What this machine has, as far as it can be told without a framework. Standard library only."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any


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


def image(container: Sequence[str]) -> dict[str, Any] | None:
    """Which image the ranks run in, as begin.json says it; None without a container. container: as in `Site`.

    Of an image that is a file its size and time of change, which tell that it was built anew. No digest: to read some
    GB at the begin of each run would load the file system that is measured. What a registry holds has its address.
    """
    if not container:
        return None
    given = [word.partition("=")[2] for word in container if word.startswith("--container-image=")]
    name = given[0] if given else container[-1]
    try:
        stat = Path(name).stat()
    except OSError:
        return {"image": name, "bytes": None, "modified": None}
    return {"image": name, "bytes": stat.st_size, "modified": stat.st_mtime}


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
