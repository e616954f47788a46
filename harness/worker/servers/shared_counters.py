"""What outlives a parameter server's process: whole numbers, in memory that it shares with the rank that started it."""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import List, Optional, Sequence

import numpy as np

NUMBER = np.dtype(np.int64)


def make_file() -> int:
    """A new file without a name, for counters of any length; its number, for this process and those that it starts."""
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class SharedCounters:
    """One row of numbers, always whole: written beside the row before, which stays until the new one is complete. So a
    process that is killed while it writes has written nothing."""

    def __init__(self, file: int, length: int) -> None:
        nbytes = NUMBER.itemsize * (1 + 2 * length)
        if os.fstat(file).st_size < nbytes:
            os.ftruncate(file, nbytes)
        memory = np.frombuffer(mmap.mmap(file, nbytes), NUMBER)
        # 0: nothing was written yet; 1, 2: which row is the last one.
        self.last, self.rows = memory[:1], memory[1:].reshape(2, length)

    def write(self, first: Sequence[int], more: np.ndarray) -> None:
        """more: of NUMBER, one-dimensional."""
        turn = 2 if self.last[0] == 1 else 1
        row = self.rows[turn - 1]
        row[: len(first)] = first
        row[len(first) :] = more
        self.last[0] = turn

    def read(self) -> Optional[List[int]]:
        """None where nothing was written."""
        turn = int(self.last[0])
        return None if turn == 0 else [int(number) for number in self.rows[turn - 1]]
