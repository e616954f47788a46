"""Writes files: the only side effect of the analysis besides printing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from analysis.base.errors import StudyError


def prepare_folder(folder: Path) -> None:
    """Create the output folder if necessary. Raises StudyError if it is not writable."""
    probe = folder / f".writable.{os.getpid()}.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise StudyError(f"cannot write to {folder} ({error.strerror}): choose another folder with --out") from None


def write_files(folder: Path, documents: Mapping[str, bytes]) -> list[Path]:
    """Write each document under its name and return the paths. Raises StudyError if a file cannot be written."""
    return [write_file(folder / name, content) for name, content in documents.items()]


def write_file(path: Path, content: bytes) -> Path:
    """Write atomically by renaming a temporary file, so that a reloading browser never sees half a report."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(exist_ok=True)
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StudyError(f"cannot write {path} ({error.strerror}): choose another folder with --out") from None
    return path
