"""Helpers for the parts of tests in frameworks' environments: batches of noise, arrays as one row, a small network."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from models import catalog


def batches(rank: int, size: int, first: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield a rank's batches from step `first` on, different for each rank and step."""
    step = first
    while True:
        random = np.random.RandomState(1000 * rank + step)
        yield random.randint(0, 256, (size, 32, 32, 3)).astype(np.uint8), random.randint(0, 10, size)
        step += 1


def flat(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([array.reshape(-1) for array in arrays])


# The smallest network of its family: its steps compile three times as fast as those of resnet20.
SMALLEST = "resnet8"
_LAYERS = catalog._cifar_resnet(8)
catalog.CATALOG[SMALLEST] = dataclasses.replace(catalog.CATALOG["resnet20"], name=SMALLEST, layers=_LAYERS)
