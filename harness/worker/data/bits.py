"""Random bits that are the same for every rank and every NumPy version."""

from __future__ import annotations

import numpy as np

from harness.core.data_errors import DataError

# One stream per purpose, so that equal numbers (epoch 0, step 0) do not give equal bits.
ORDER, AUGMENTATION, SYNTHETIC, SYNTHETIC_TEXT, SHARD_ORDER, WINDOW_ORDER, FIRST_FLIP = 1, 2, 3, 4, 5, 6, 7


def random_bits(count: int, purpose: int, seed: int, *index: int) -> np.ndarray:
    """uint64 [count], a function of the arguments alone.

    The bits come straight from Philox (Salmon et al. 2011), a counter-based generator: NumPy promises the streams of
    its bit generators for good, but not those of `Generator` methods such as `permutation` (NEP 19), and the
    frameworks under comparison bring different NumPy versions.
    """
    if seed < 0:
        raise DataError(f"seed {seed} is negative; a seed is 0 or greater")
    return np.random.Philox(np.random.SeedSequence([purpose, seed, *index])).random_raw(count)
