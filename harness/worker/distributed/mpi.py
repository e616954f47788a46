"""Gradients through mpi4py: one flat buffer, averaged after backward. What strategy=mpi is in every framework.

The hand-made baseline that everyone should beat: nothing overlaps, nothing is chunked.
"""

from __future__ import annotations

import ctypes
from typing import Any, Dict

import numpy as np
from mpi4py import MPI


class MpiRanks:
    """The ranks of MPI.COMM_WORLD. Buffers are NumPy arrays, or what offers `__cuda_array_interface__` to an MPI that
    is CUDA-aware."""

    def __init__(self) -> None:
        self.world = MPI.COMM_WORLD
        # A rank that raises ends by itself; MPI's own word for it would come without a traceback.
        self.world.Set_errhandler(MPI.ERRORS_RETURN)
        self.world_size = int(self.world.Get_size())
        self.messages: Dict[int, np.ndarray] = {}

    @property
    def name(self) -> str:
        return "MPI, " + MPI.Get_library_version().split(",")[0].strip().split("\n")[0]

    def sum(self, buffer: Any) -> None:
        """In place. A device buffer must be complete before: synchronise its stream first."""
        self.world.Allreduce(MPI.IN_PLACE, buffer)

    def average(self, buffer: np.ndarray) -> None:
        """In place."""
        self.sum(buffer)
        buffer /= self.world_size

    def allreduce(self, nbytes: int) -> None:
        """Sums a message of `nbytes` bytes of float32 in the host's memory."""
        if nbytes not in self.messages:
            self.messages[nbytes] = np.zeros(max(1, nbytes // 4), np.float32)
        self.sum(self.messages[nbytes])

    def broadcast(self, buffer: np.ndarray) -> None:
        """Rank 0's, in place."""
        self.world.Bcast(buffer, root=0)

    def close(self) -> None:
        MPI.Finalize()


def cuda_aware() -> bool:
    """Whether the MPI library takes pointers to GPU memory: Open MPI, and libraries made of it, can tell."""
    try:
        return bool(ctypes.CDLL(MPI.__file__).MPIX_Query_cuda_support())
    except (OSError, AttributeError):
        return False


def versions() -> Dict[str, str]:
    """Of mpi4py and of the MPI library."""
    import mpi4py

    return {"mpi4py": mpi4py.__version__, "mpi": MPI.Get_library_version().split("\n")[0].split(", package")[0].strip()}
