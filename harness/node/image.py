"""Which container image the ranks run in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


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
