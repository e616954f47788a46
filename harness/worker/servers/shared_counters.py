"""Integers that survive a parameter server, in memory shared with the rank that started it."""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import List, Optional, Sequence

import numpy as np

NUMBER = np.dtype(np.int64)


def make_file() -> int:
    """Return the descriptor of a new unnamed file that child processes can inherit."""
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class SharedCounters:
    """An array of integers with atomic updates: written next to the previous one, which stays valid until the new one
    is complete, even if the process is killed."""

    def __init__(self, file: int, length: int) -> None:
        nbytes = NUMBER.itemsize * (1 + 2 * length)
        if os.fstat(file).st_size < nbytes:
            os.ftruncate(file, nbytes)
        memory = np.frombuffer(mmap.mmap(file, nbytes), NUMBER)
        # last: 0 if nothing has been written, else the number (1, 2) of the valid row.
        self.last, self.rows = memory[:1], memory[1:].reshape(2, length)

    def write(self, first: Sequence[int], more: np.ndarray) -> None:
        """more: one-dimensional, of NUMBER."""
        turn = 2 if self.last[0] == 1 else 1
        row = self.rows[turn - 1]
        row[: len(first)] = first
        row[len(first) :] = more
        self.last[0] = turn

    def read(self) -> Optional[List[int]]:
        """Return the last row; None if nothing has been written."""
        turn = int(self.last[0])
        return None if turn == 0 else [int(number) for number in self.rows[turn - 1]]
