"""Helpers for the parts of tests in frameworks' environments: batches of noise, arrays as one row, a small network."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from models import catalog
from models.layers import GlobalAveragePool, Layers, Linear, PadShortcut, ReLU, Residual


def batches(rank: int, size: int, first: int = 0) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield a rank's batches from step `first` on, different for each rank and step."""
    step = first
    while True:
        random = np.random.RandomState(1000 * rank + step)
        yield random.randint(0, 256, (size, 32, 32, 3)).astype(np.uint8), random.randint(0, 10, size)
        step += 1


def flat(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([array.reshape(-1) for array in arrays])


# The layer types of resnet20 in one residual block, which compiles much faster.
SMALLEST = "resnet4"
# A block of each stage, with both kinds of shortcuts.
SMALL_RESNET = "resnet8"


def _smallest(channels: int, classes: int, _: int) -> Layers:
    body, shortcut = catalog._basic_body(16, 32, stride=2, zero_scale=False), (PadShortcut(16, 32, 2),)
    stem = (*catalog._conv_bn(channels, 16, 3), ReLU())
    return (*stem, Residual(body, shortcut), GlobalAveragePool(), Linear(32, classes))


catalog.CATALOG[SMALL_RESNET] = dataclasses.replace(
    catalog.CATALOG["resnet20"], name=SMALL_RESNET, layers=catalog._cifar_resnet(8)
)
catalog.CATALOG[SMALLEST] = dataclasses.replace(catalog.CATALOG["resnet20"], name=SMALLEST, layers=_smallest)
