"""The assignment of samples to batches, independent of the number of ranks."""

from __future__ import annotations

from typing import Dict, List

import numpy as np

from harness.core.errors import DataError
from harness.worker.data.bits import ORDER, random_bits


class SampleOrder:
    """An endless stream of sample indices: one permutation of 0..samples-1 per epoch.

    Global batch s takes positions [s * G, (s + 1) * G) of the stream, across epoch boundaries, and rank r the r-th of
    `world` equal slices of it. So every batch is full, every sample is used once per epoch, and the samples of a step
    do not depend on the number of ranks. Not thread-safe.
    """

    def __init__(self, samples: int, seed: int) -> None:
        if samples < 1:
            raise DataError(f"a training set of {samples} samples is too small; it needs at least one sample")
        self.samples = samples
        self.seed = seed
        self._epochs: Dict[int, np.ndarray] = {}

    def rank_batch(self, step: int, rank: int, world: int, global_batch: int) -> np.ndarray:
        """Return the samples of `rank` in step `step` (from 0): int64 [global_batch / world].

        Raises DataError if `world` ranks cannot share `global_batch` equally or `rank` is out of range.
        """
        size = rank_batch_size(rank, world, global_batch)
        position = step * global_batch + rank * size
        end = position + size
        pieces: List[np.ndarray] = []
        while position < end:
            epoch, offset = divmod(position, self.samples)
            piece = self.epoch(epoch)[offset : offset + end - position]
            pieces.append(piece)
            position += len(piece)
        return pieces[0].copy() if len(pieces) == 1 else np.concatenate(pieces)

    def epoch(self, epoch: int) -> np.ndarray:
        """Return the permutation of an epoch, int64 [samples], read-only; the last two are cached."""
        if epoch not in self._epochs:
            if len(self._epochs) == 2:
                del self._epochs[min(self._epochs)]
            keys = random_bits(self.samples, ORDER, self.seed, epoch)
            # Sorting random keys gives a reproducible permutation; see random_bits.
            order = np.argsort(keys, kind="stable").astype(np.int64, copy=False)
            order.flags.writeable = False
            self._epochs[epoch] = order
        return self._epochs[epoch]


def rank_batch_size(rank: int, world: int, global_batch: int) -> int:
    """Return the samples per rank and step. Raises DataError like `SampleOrder.rank_batch`."""
    _check_rank(rank, world)
    if global_batch < 1 or global_batch % world:
        raise DataError(
            f"a global batch of {global_batch} cannot be shared equally by {world} ranks; use a multiple of {world}"
        )
    return global_batch // world


def evaluation_shard(samples: int, rank: int, world: int) -> np.ndarray:
    """Return the test samples that `rank` scores: rank, rank + world, ...; int64, each sample on exactly one rank."""
    _check_rank(rank, world)
    return np.arange(rank, samples, world, dtype=np.int64)


def _check_rank(rank: int, world: int) -> None:
    if world < 1 or not 0 <= rank < world:
        raise DataError(f"rank {rank} of {world} ranks does not exist; ranks run from 0 to world size - 1")
