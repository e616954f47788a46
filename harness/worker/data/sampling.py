"""Choose a rank's samples and their augmentation in each step, equally for every input pipeline."""

from __future__ import annotations

from typing import Iterator, Optional, Tuple

import numpy as np

from harness.core.spec import DatasetSpec
from harness.worker.data.bits import AUGMENTATION, FIRST_FLIP, random_bits
from harness.worker.data.sharding import SampleOrder, rank_batch_size


class Draw:
    """The draws of rank `rank` of `world`, determined by (seed, step), so that resumed runs are reproducible. Not
    thread-safe. size: samples per step. Raises DataError if the ranks cannot share the global batch."""

    def __init__(self, samples: int, spec: DatasetSpec, global_batch: int, rank: int, world: int, seed: int) -> None:
        self.size = rank_batch_size(rank, world, global_batch)
        self.augmented, self.crop_pixels, self.crop_reflect = spec.augment, spec.crop_pixels, spec.crop_reflect
        self._alternating = spec.alternating_flip
        self._first_flips: Optional[np.ndarray] = None
        self.shuffle_buffer, self.rank, self.world, self.seed = spec.shuffle_buffer, rank, world, seed
        self._order, self._global_batch = SampleOrder(samples, seed), global_batch

    def indices(self, step: int) -> np.ndarray:
        """Return the sample indices, int64 [size]."""
        return self._order.rank_batch(step, self.rank, self.world, self._global_batch)

    def bits(self, step: int) -> Optional[np.ndarray]:
        """Return uint64 [size] that determine each sample's crop and flip (augment.choices); None without augmentation.

        Drawn for the global batch and sliced by rank, so that they do not depend on the number of ranks. With
        alternating flips, the lowest bit depends on the sample and its epoch.
        """
        if not self.augmented:
            return None
        bits = random_bits(self._global_batch, AUGMENTATION, self.seed, step)
        bits = bits[self.rank * self.size : (self.rank + 1) * self.size]
        return bits & ~np.uint64(1) | self._alternate(step) if self._alternating else bits

    def _alternate(self, step: int) -> np.ndarray:
        """Return uint64 [size], 1 for flipped samples: random in the first epoch, alternating from then on."""
        samples = self._order.samples
        if self._first_flips is None:
            self._first_flips = random_bits(samples, FIRST_FLIP, self.seed)
        begin = step * self._global_batch + self.rank * self.size
        epochs = np.arange(begin, begin + self.size, dtype=np.uint64) // np.uint64(samples)
        return (self._first_flips[self.indices(step)] + epochs) & np.uint64(1)

    def steps(self, first_step: int) -> Iterator[Tuple[np.ndarray, Optional[np.ndarray]]]:
        """Yield (indices, bits) of each step from `first_step` on, without end."""
        while True:
            yield self.indices(first_step), self.bits(first_step)
            first_step += 1
