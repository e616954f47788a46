"""Small file systems in memory that tests fill."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

KIB = 1024


@contextlib.contextmanager
def mounted(folder: Path, size: str, files: int) -> Iterator[Path]:
    """Mount a file system of this size, such as '4m', and number of files. Skips the test where that is not allowed."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size},nr_inodes={files}", "tmpfs", str(folder)]
    if (done := subprocess.run(mount, capture_output=True, text=True, check=False)).returncode != 0:
        pytest.skip(f"a file system cannot be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill_bytes(folder: Path, left: int) -> None:
    """Use up the space but for this many bytes."""
    block = b"x" * KIB
    with open(folder / "filler", "wb", buffering=0) as file:
        try:
            while True:
                file.write(block * 4)
        except OSError:
            file.truncate(file.tell() - left)


def fill_files(folder: Path, left: int) -> None:
    """Use up the numbers of files but for this many."""
    (folder / "filler").mkdir()
    numbers = 0
    try:
        while True:
            (folder / "filler" / str(numbers)).touch()
            numbers += 1
    except OSError:
        for number in range(left):
            (folder / "filler" / str(number)).unlink()


def free(folder: Path) -> None:
    """Undo either."""
    filler = folder / "filler"
    for path in [*filler.iterdir()] if filler.is_dir() else [filler]:
        path.unlink()
