"""Random bits that do not depend on the rank or the NumPy version."""

from __future__ import annotations

import numpy as np

from harness.core.errors import DataError

# One stream per purpose, so that equal indices (epoch 0, step 0) give different bits.
ORDER, AUGMENTATION, SYNTHETIC, SYNTHETIC_TEXT, SHARD_ORDER, WINDOW_ORDER, FIRST_FLIP = 1, 2, 3, 4, 5, 6, 7


def random_bits(count: int, purpose: int, seed: int, *index: int) -> np.ndarray:
    """Return uint64 [count], determined by the arguments.

    Uses raw Philox output (Salmon et al. 2011), a counter-based generator: NumPy guarantees the streams of bit
    generators, but not of `Generator` methods such as `permutation` (NEP 19), and the frameworks use different NumPy
    versions.
    """
    if seed < 0:
        raise DataError(f"seed {seed} is negative; a seed is 0 or greater")
    return np.random.Philox(np.random.SeedSequence([purpose, seed, *index])).random_raw(count)
