"""strategy=mpi in every framework: average one flat gradient buffer by mpi4py after backward.

A hand-written baseline that other strategies should beat: no overlap, no chunking.
"""

from __future__ import annotations

import ctypes
from typing import Any, Dict

import numpy as np
from mpi4py import MPI


class MpiRanks:
    """The ranks of MPI.COMM_WORLD. Buffers are NumPy arrays or, with CUDA-aware MPI, anything with
    `__cuda_array_interface__`."""

    def __init__(self) -> None:
        self.world = MPI.COMM_WORLD
        # Raise errors in Python: MPI's own handler would abort without a traceback.
        self.world.Set_errhandler(MPI.ERRORS_RETURN)
        self.world_size = int(self.world.Get_size())
        self.messages: Dict[int, np.ndarray] = {}

    @property
    def name(self) -> str:
        return "MPI, " + MPI.Get_library_version().split(",")[0].strip().split("\n")[0]

    def sum(self, buffer: Any) -> None:
        """Sum in place. Synchronise the stream of a device buffer first."""
        self.world.Allreduce(MPI.IN_PLACE, buffer)

    def average(self, buffer: np.ndarray) -> None:
        """Average in place."""
        self.sum(buffer)
        buffer /= self.world_size

    def allreduce(self, nbytes: int) -> None:
        """Sum a float32 message of `nbytes` bytes in host memory."""
        if nbytes not in self.messages:
            self.messages[nbytes] = np.zeros(max(1, nbytes // 4), np.float32)
        self.sum(self.messages[nbytes])

    def broadcast(self, buffer: np.ndarray) -> None:
        """Copy rank 0's buffer to all ranks, in place."""
        self.world.Bcast(buffer, root=0)

    def close(self) -> None:
        MPI.Finalize()


def cuda_aware() -> bool:
    """Return True if the MPI library accepts pointers to GPU memory, as Open MPI and its derivatives can report."""
    try:
        return bool(ctypes.CDLL(MPI.__file__).MPIX_Query_cuda_support())
    except (OSError, AttributeError):
        return False


def versions() -> Dict[str, str]:
    """Return the versions of mpi4py and of the MPI library."""
    import mpi4py

    return {"mpi4py": mpi4py.__version__, "mpi": MPI.Get_library_version().split("\n")[0].split(", package")[0].strip()}
