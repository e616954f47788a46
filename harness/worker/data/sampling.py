"""Which samples a rank takes in a step, and how each is augmented: the same for every input pipeline."""

from __future__ import annotations

from typing import Iterator, Optional, Tuple

import numpy as np

from harness.core.spec import DatasetSpec
from harness.worker.data.bits import AUGMENTATION, FIRST_FLIP, random_bits
from harness.worker.data.sharding import SampleOrder, rank_batch_size


class Draw:
    """Of rank `rank` of `world`; a function of (seed, step) alone, so that a resumed run draws as an uncut one. For use
    by one thread. size: samples of a step. Raises DataError where the ranks cannot share the global batch."""

    def __init__(
        self, order: SampleOrder, spec: DatasetSpec, global_batch: int, rank: int, world: int, seed: int
    ) -> None:
        self.size = rank_batch_size(rank, world, global_batch)
        self.augmented, self.crop_pixels, self.crop_reflect = spec.augment, spec.crop_pixels, spec.crop_reflect
        self._alternating = spec.alternating_flip
        self._first_flips: Optional[np.ndarray] = None
        self._order, self._global_batch, self._rank, self._world, self._seed = order, global_batch, rank, world, seed

    def indices(self, step: int) -> np.ndarray:
        """int64 [size]."""
        return self._order.rank_batch(step, self._rank, self._world, self._global_batch)

    def bits(self, step: int) -> Optional[np.ndarray]:
        """uint64 [size], from which each sample's crop and flip follow (augment.choices); None without augmentation.

        Drawn for the whole global batch, of which the rank takes its slice: they do not depend on the number of ranks
        either. With alternating flips, the lowest bit is that of the sample and its epoch."""
        if not self.augmented:
            return None
        bits = random_bits(self._global_batch, AUGMENTATION, self._seed, step)
        bits = bits[self._rank * self.size : (self._rank + 1) * self.size]
        return bits & ~np.uint64(1) | self._alternate(step) if self._alternating else bits

    def _alternate(self, step: int) -> np.ndarray:
        """uint64 [size], 1 where the sample is flipped: in the first epoch by a coin, then in every second one."""
        samples = self._order.samples
        if self._first_flips is None:
            self._first_flips = random_bits(samples, FIRST_FLIP, self._seed)
        begin = step * self._global_batch + self._rank * self.size
        epochs = np.arange(begin, begin + self.size, dtype=np.uint64) // np.uint64(samples)
        return (self._first_flips[self.indices(step)] + epochs) & np.uint64(1)

    def steps(self, first_step: int) -> Iterator[Tuple[np.ndarray, Optional[np.ndarray]]]:
        """(indices, bits) of each step from `first_step` on, without end."""
        while True:
            yield self.indices(first_step), self.bits(first_step)
            first_step += 1
