"""Helpers for the parts of tests in frameworks' environments: batches of noise, and arrays as one row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np


def batches(rank: int, size: int, first: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield a rank's batches from step `first` on, different for each rank and step."""
    step = first
    while True:
        random = np.random.RandomState(1000 * rank + step)
        yield random.randint(0, 256, (size, 32, 32, 3)).astype(np.uint8), random.randint(0, 10, size)
        step += 1


def flat(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([array.reshape(-1) for array in arrays])
