"""The event log of a rank, in the format of harness/core/events.py, with the checksums of harness/core/seals.py."""

from __future__ import annotations

import contextlib
import json
import math
import time
import zlib
from typing import Any, TextIO

VERSION = 1


class EventLog:
    """Appends events to a file that is created with the first one. Each line is flushed immediately, so a killed rank
    loses none."""

    def __init__(self, path: str, rank: int) -> None:
        self._path, self._rank = path, rank
        self._file: TextIO | None = None
        # Of all bytes of the log so far, and its number of lines.
        self._crc = self._number = 0

    def write(self, ev: str, seconds_ago: float = 0.0, **values: Any) -> None:
        record = {"v": VERSION, "t": round(time.time() - seconds_ago, 6), "rank": self._rank, "ev": ev}
        # NaN is not valid JSON; a diverged loss is written as null.
        record.update({k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()})
        if self._file is None:
            with contextlib.suppress(FileNotFoundError), open(self._path, "rb") as file:
                written = file.read()
                self._crc, self._number = zlib.crc32(written), written.count(b"\n")
            self._file = open(self._path, "a", encoding="ascii", buffering=1)  # noqa: SIM115 (closed by close)
        head = f'{json.dumps(record, separators=(",", ":"), allow_nan=False)[:-1]},"i":{self._number}'
        crc = zlib.crc32(head.encode("ascii"), self._crc)
        tail = f',"crc":"{crc:08x}"}}\n'
        self._crc, self._number = zlib.crc32(tail.encode("ascii"), crc), self._number + 1
        self._file.write(head + tail)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
