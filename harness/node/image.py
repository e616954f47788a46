"""Identifies the container image of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def image(container: Sequence[str]) -> dict[str, Any] | None:
    """Describe the container image for begin.json.

    A file is identified by size and modification time, which change when the image is rebuilt. It is not hashed:
    reading several GB at the start of every run would load the file system that is being measured. An image in a
    registry is identified by its address.

    Args:
        container: the container command, as in `Site`.

    Returns:
        None without a container.
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
