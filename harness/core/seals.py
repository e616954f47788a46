"""Checksums that show damage to a run's files. Standard library only, Python 3.8 syntax.

Each line of an event log ends in its number and a CRC-32 of all bytes of the log before it, so that a changed, missing,
moved or repeated line shows. A JSON document has a CRC-32 of its other keys. Files of older versions have neither.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any, Dict, Mapping

# Key of the checksum, in lines and documents; and of a line's number, from 0.
CRC, NUMBER = "crc", "i"
# Bytes of a line after what its checksum covers: the checksum itself and the end of the line.
TAIL_BYTES = len(f',"{CRC}":"00000000"}}\n')


class LineSeal:
    """Seals the lines of one log in order."""

    def __init__(self, path: Path) -> None:
        """path: the log; lines that it already has are continued."""
        self.crc = self.number = 0
        try:
            written = path.read_bytes()
        except FileNotFoundError:
            return
        self.crc, self.number = zlib.crc32(written), written.count(b"\n")

    def seal(self, line: str) -> str:
        """Return a JSON object, in ASCII without a line break, as the next line of the log."""
        head = f'{line[:-1]},"{NUMBER}":{self.number}'
        crc = zlib.crc32(head.encode("ascii"), self.crc)
        tail = f',"{CRC}":"{crc:08x}"}}\n'
        self.crc, self.number = zlib.crc32(tail.encode("ascii"), crc), self.number + 1
        return head + tail


def sealed(document: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the document with its checksum."""
    return {**document, CRC: _checksum(document)}


def is_intact(document: Mapping[str, Any]) -> bool:
    """Return whether the document fits its checksum; True without one."""
    return CRC not in document or document[CRC] == _checksum(document)


def _checksum(document: Mapping[str, Any]) -> str:
    content = {key: value for key, value in document.items() if key != CRC}
    return f"{zlib.crc32(json.dumps(content, sort_keys=True).encode('ascii')):08x}"
