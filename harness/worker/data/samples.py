"""A data set for loaders that take one sample at a time: an indexable object and the keys of each batch."""

from __future__ import annotations

from typing import Any, Iterator, List, Optional, Tuple

import numpy as np

from harness.worker.data.augment import augment
from harness.worker.data.sampling import Draw
from harness.worker.data.splits import Split

# (sample index, random bits of its augmentation as uint64 [1], or None)
Key = Tuple[int, Optional[np.ndarray]]


class Samples:
    def __init__(self, split: Split, draw: Draw) -> None:
        self._split, self._crop = split, (draw.crop_pixels, draw.crop_reflect)

    def __len__(self) -> int:
        return len(self._split)

    def __getitem__(self, key: Key) -> Tuple[np.ndarray, Any]:
        """Return (image, label): the augmented image uint8 [H, W, C] and its label int64; for text both [tokens]."""
        index, bits = np.array([key[0]]), key[1]
        images = self._split.images(index)
        if bits is not None:
            images = augment(images, bits, *self._crop)
        return images[0], self._split.targets(index)[0]


class Keys:
    """The keys of each step from `first_step` on, without end, as a loader's batch sampler."""

    def __init__(self, draw: Draw, first_step: int) -> None:
        self._draw, self._first_step = draw, first_step

    def __iter__(self) -> Iterator[List[Key]]:
        for indices, bits in self._draw.steps(self._first_step):
            yield [(int(index), None if bits is None else bits[at : at + 1]) for at, index in enumerate(indices)]
