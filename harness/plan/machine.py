"""What this machine has, as far as it can be told without a framework. Standard library only."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# Entries of CUDA_VISIBLE_DEVICES that are meant to name no device: CUDA's own, Slurm's, that of container runtimes.
NO_DEVICE = ("-1", "NoDevFiles", "none", "void")


@dataclass(frozen=True)
class Device:
    """What CUDA counts as a device: a GPU, or a part of one that was divided by MIG.

    name: its UUID, as CUDA_VISIBLE_DEVICES takes it. board: the UUID of the GPU that it is, or is a part of.
    """

    name: str
    board: str


def gpus() -> tuple[str, ...]:
    """The devices that this process may use, as CUDA_VISIBLE_DEVICES names them; empty where there is no driver."""
    return tuple(device.name for device in devices())


@cache
def devices() -> tuple[Device, ...]:
    """Those that this process may use; empty where there is no driver."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    boards = _boards()
    if visible is None:
        return tuple(device for parts in boards for device in parts)
    return chosen(boards, visible)


def unknown_device() -> str | None:
    """The entry of CUDA_VISIBLE_DEVICES that keeps this process from every GPU of the machine, where it names none of
    them; None where there is nothing wrong."""
    entries = [entry.strip() for entry in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    return None if entries[0] in ("", *NO_DEVICE) or devices() or not _boards() else entries[0]


def listed(text: str) -> list[list[Device]]:
    """For each GPU in the output of `nvidia-smi -L`, its devices: those that MIG made of it, else the GPU itself."""
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


def chosen(boards: Sequence[Sequence[Device]], visible: str) -> tuple[Device, ...]:
    """Those that the entries of CUDA_VISIBLE_DEVICES name, up to the first that names none, as CUDA reads them: indices
    of GPUs, and UUIDs of GPUs or their parts, or the beginnings of these. Of a divided GPU that is named as a whole
    CUDA gives the first part.
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
    """Of the GPU with the least, in 2^30 bytes; None where it is not known, or GPUs are divided by MIG."""
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
    # nvidia-smi does not look at CUDA_VISIBLE_DEVICES.
    try:
        said = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return listed(said.stdout) if said.returncode == 0 else []


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
