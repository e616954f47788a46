"""Verifies the checksums of a log's lines (harness/core/seals.py): whole pieces, line by line where they differ."""

from __future__ import annotations

import re
import zlib
from collections import Counter, deque

from analysis.read.damage import CHECKSUM, LOST, REPEATED
from harness.core.seals import TAIL_BYTES

# A line's number and checksum, at its end.
_SEAL = re.compile(rb',"i":(0|[1-9][0-9]{0,8}),"crc":"([0-9a-f]{8})"\}\n?\Z')
_ANY_SEAL = re.compile(rb',"crc":"[0-9a-f]{8}"\}\n')
# Checksums up to which a following line is tried: those of the lines before a damaged one, and what it may have had.
_TRIED = 8


class Seals:
    """The state of the verification of one log, read from its beginning.

    Attributes:
        sealed: whether its lines have checksums; None before its first piece.
    """

    def __init__(self, damage: Counter[str]) -> None:
        """damage: where missing lines are counted."""
        self.sealed: bool | None = None
        self._damage = damage
        self._states = deque([0], maxlen=_TRIED)
        self._next = self._unverified = 0

    def holds(self, piece: bytes) -> bool:
        """Return whether the next lines are intact, or have no checksums as the whole log."""
        if self.sealed is None:
            self.sealed = _ANY_SEAL.search(piece) is not None
        if not self.sealed:
            return True
        if self._unverified or not (found := _SEAL.search(piece, max(0, len(piece) - 40))):
            return False
        end = len(piece) - TAIL_BYTES
        state = zlib.crc32(piece[:end], self._states[-1])
        if not piece.endswith(b"\n") or state != int(found[2], 16):
            return False
        self._states.append(zlib.crc32(piece[end:], state))
        self._next = int(found[1]) + 1
        return True

    def damage_of(self, line: bytes) -> str | None:
        """Return the kind of damage to the next line; None if it is intact. line: without its line break."""
        found = _SEAL.search(line)
        if found is None:
            self._unverified += 1
            return CHECKSUM
        head, stored = line[: found.start(2) - 8], int(found[2], 16)
        computed = [zlib.crc32(head, state) for state in self._states]
        self._states.append(_after(stored))
        if stored not in computed:
            # If only the checksum was hit, the next line continues from what it was.
            self._states.append(_after(computed[-1]))
            self._unverified += 1
            return CHECKSUM
        number = int(found[1])
        if number < self._next:
            return REPEATED
        missing = number - self._next - self._unverified
        if missing > 0:
            self._damage[LOST] += missing
        self._next, self._unverified = number + 1, 0
        return None


def _after(crc: int) -> int:
    """Return the checksum up to the end of a line that has this one."""
    return zlib.crc32(b',"crc":"%08x"}\n' % crc, crc)
