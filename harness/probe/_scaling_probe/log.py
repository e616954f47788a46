"""The event log of a rank, in the format of harness/core/events.py."""

from __future__ import annotations

import json
import math
import time
from typing import Any, TextIO

VERSION = 1


class EventLog:
    """Appends events to a file that is created with the first one. Each line is flushed immediately, so a killed rank
    loses none."""

    def __init__(self, path: str, rank: int) -> None:
        self._path, self._rank = path, rank
        self._file: TextIO | None = None

    def write(self, ev: str, seconds_ago: float = 0.0, **values: Any) -> None:
        record = {"v": VERSION, "t": round(time.time() - seconds_ago, 6), "rank": self._rank, "ev": ev}
        # NaN is not valid JSON; a diverged loss is written as null.
        record.update({k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()})
        if self._file is None:
            self._file = open(self._path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115 (closed by close)
        self._file.write(json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
