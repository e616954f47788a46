"""Hardware of this machine, detected without a framework. Standard library only."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from harness.core.gpu_types import installed

# CUDA_VISIBLE_DEVICES entries that mean no device: used by CUDA, Slurm and container runtimes.
NO_DEVICE = ("-1", "NoDevFiles", "none", "void")


@dataclass(frozen=True)
class Device:
    """A CUDA device: a GPU, or a MIG instance of one.

    name: its UUID, as CUDA_VISIBLE_DEVICES takes it. board: the UUID of the physical GPU.
    """

    name: str
    board: str


def gpus() -> tuple[str, ...]:
    """Names of the devices visible to this process, for CUDA_VISIBLE_DEVICES; empty without a driver."""
    return tuple(device.name for device in devices())


@cache
def devices() -> tuple[Device, ...]:
    """Devices visible to this process; empty without a driver."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    boards = _boards()
    if visible is None:
        return tuple(device for parts in boards for device in parts)
    return select_devices(boards, visible)


def unknown_device() -> str | None:
    """The entry of CUDA_VISIBLE_DEVICES that matches no GPU and so hides all of them; None if all is well."""
    entries = [entry.strip() for entry in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    return None if entries[0] in ("", *NO_DEVICE) or devices() or not _boards() else entries[0]


def parse_device_list(text: str) -> list[list[Device]]:
    """Parse `nvidia-smi -L`: for each GPU its MIG instances, or the GPU itself."""
    boards: list[list[Device]] = []
    board = ""
    for line in text.splitlines():
        match = re.search(r"\(UUID:\s*([^)\s]+)\)", line)
        if match and line.startswith("GPU "):
            board = match.group(1)
            boards.append([Device(board, board)])
        elif match and boards and line.lstrip().startswith("MIG "):
            if boards[-1] == [Device(board, board)]:
                boards[-1] = []
            boards[-1].append(Device(match.group(1), board))
    return boards


def select_devices(boards: Sequence[Sequence[Device]], visible: str) -> tuple[Device, ...]:
    """Select devices as CUDA interprets CUDA_VISIBLE_DEVICES, stopping at the first invalid entry.

    Entries are GPU indices, or UUIDs (or prefixes of them) of GPUs or MIG instances. For a partitioned GPU named as a
    whole, CUDA uses the first instance.
    """
    found: list[Device] = []
    for entry in (entry.strip() for entry in visible.split(",")):
        if entry.isdigit() and int(entry) < len(boards):
            found.append(boards[int(entry)][0])
            continue
        fits = [part for parts in boards for part in parts if part.name.startswith(entry)]
        fits += [parts[0] for parts in boards if parts[0].board.startswith(entry)]
        if not entry or entry.isdigit() or not fits:
            break
        found.append(fits[0])
    return tuple(found)


@cache
def gpu_memory_gb() -> float | None:
    """Memory of the smallest GPU in GiB; None if unknown or if MIG is in use."""
    if any(device.name != device.board for device in devices()):
        return None
    try:
        told = subprocess.run(
            ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=30,
        )
        return min(int(line) for line in told.stdout.splitlines()) / 1024 if told.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return None


@cache
def _boards() -> list[list[Device]]:
    # nvidia-smi ignores CUDA_VISIBLE_DEVICES.
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return parse_device_list(done.stdout) if done.returncode == 0 else []


def cores() -> int:
    """Cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


@cache
def code_version(project: Path) -> str:
    """Git commit of the project, with '-dirty' if tracked files are modified; 'unknown' outside a checkout.

    If it was installed by pip, its version.
    """
    if installed(project):  # git would take the repository around it
        from importlib import metadata

        return metadata.version("scaling-harness")
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
