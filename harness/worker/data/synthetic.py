"""Synthetic samples from a seed, for machines without data: a pattern per class plus noise, so that training learns."""

from __future__ import annotations

from typing import Tuple

import numpy as np

from harness.core.errors import DataError
from harness.core.spec import DatasetSpec
from harness.worker.data.bits import SYNTHETIC, random_bits
from harness.worker.data.splits import ArraySplit

# Pattern values 0..63 on a coarse grid plus noise 0..191 fit in a byte.
_GRID = 8
_PATTERN_LEVELS = 64
_NOISE_LEVELS = 192
_CHUNK = 64
_PATTERNS, _TRAIN, _TEST = 0, 1, 2


def make(spec: DatasetSpec, seed: int) -> Tuple[ArraySplit, ArraySplit]:
    """Return both splits in memory, `spec.train_samples` and `spec.test_samples` images, determined by spec and seed.

    Sample i has label i modulo classes. The splits share patterns and differ in noise. Raises DataError if a number of
    samples is not positive.
    """
    for key, samples in (("train_samples", spec.train_samples), ("test_samples", spec.test_samples)):
        if samples < 1:
            raise DataError(f"synthetic data set '{spec.name}' has {key} = {samples}; set it to 1 or more")
    patterns = _patterns(spec, seed)
    return (
        _split(spec, patterns, seed, _TRAIN, spec.train_samples),
        _split(spec, patterns, seed, _TEST, spec.test_samples),
    )


def _split(spec: DatasetSpec, patterns: np.ndarray, seed: int, part: int, samples: int) -> ArraySplit:
    labels = np.arange(samples, dtype=np.int64) % spec.classes
    images = np.empty((samples, spec.image_size, spec.image_size, spec.channels), dtype=np.uint8)
    for chunk, start in enumerate(range(0, samples, _CHUNK)):  # in chunks, to avoid a second copy of the whole
        slab = images[start : start + _CHUNK]
        slab[:] = _bytes(slab.size, _NOISE_LEVELS, seed, part, chunk).reshape(slab.shape)
        slab += patterns[labels[start : start + _CHUNK]]
    return ArraySplit(images, labels)


def _patterns(spec: DatasetSpec, seed: int) -> np.ndarray:
    """Return uint8 [class, height, width, channel], contiguous, from which images are copied three times as fast."""
    shape = (spec.classes, _GRID, _GRID, spec.channels)
    coarse = _bytes(int(np.prod(shape)), _PATTERN_LEVELS, seed, _PATTERNS, 0).reshape(shape)
    cells = np.arange(spec.image_size) * _GRID // spec.image_size
    return np.ascontiguousarray(coarse[:, cells][:, :, cells])


def _bytes(count: int, levels: int, seed: int, part: int, chunk: int) -> np.ndarray:
    """Return uint8 [count], uniform over 0..levels-1 up to the rounding of 256 values to `levels`."""
    words = random_bits((count + 7) // 8, SYNTHETIC, seed, part, chunk).astype("<u8", copy=False)
    return (words.view(np.uint8)[:count].astype(np.uint16) * levels >> 8).astype(np.uint8)
