"""Times of files, on which the cache of a study relies."""

from __future__ import annotations

import os
import time
from pathlib import Path


def touch_later(path: Path) -> None:
    """Give the file a distinct modification time, however coarse the file system's clock is."""
    later = time.time_ns() + 5_000_000_000
    os.utime(path, ns=(later, later))
