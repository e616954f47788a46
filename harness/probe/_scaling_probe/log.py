"""The event log of a rank, in the format of harness/core/events.py."""

from __future__ import annotations

import json
import math
import time
from typing import Any

VERSION = 1


class EventLog:
    """Appends events. Each line is flushed immediately, so a killed rank loses none."""

    def __init__(self, path: str, rank: int) -> None:
        self._rank = rank
        self._file = open(path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115 (closed by close)

    def write(self, ev: str, **values: Any) -> None:
        record = {"v": VERSION, "t": round(time.time(), 6), "rank": self._rank, "ev": ev}
        # NaN is not valid JSON; a diverged loss is written as null.
        record.update({k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()})
        self._file.write(json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n")

    def close(self) -> None:
        self._file.close()
