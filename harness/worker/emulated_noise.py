"""The set noise of emulated ranks (harness/worker/emulated): pure functions of seed, rank and step, so that what each
rank took can be computed."""

from __future__ import annotations

from typing import Any, Mapping

import numpy as np

# Noise is clipped so that a step takes between 1/3 and 5/3 of its time.
WIDEST = 2 / 3
# Common noise holds for so many steps, as a drifting clock or temperature would.
COMMON_STEPS = 20


def seconds_with_noise(seconds: float, options: Mapping[str, Any], seed: int, rank: int, step: int) -> float:
    """Return the seconds of a rank's forward and backward in a step, from those without noise.

    options: `jitter` is independent between ranks and steps, `common_jitter` the same on all ranks; both are relative
    standard deviations. With `late_probability` a rank is late in a step, by `late_ms` on average, exponentially
    distributed.
    """
    jitter, common = options["jitter"], options.get("common_jitter", 0.0)
    late = options.get("late_probability", 0.0)
    if not jitter and not common and not late:
        return seconds
    random = np.random.default_rng((seed, rank, step))
    found = seconds * (1 + _clipped(jitter * random.standard_normal()))
    if common:
        found *= 1 + _clipped(common * np.random.default_rng((seed, 0, step // COMMON_STEPS, 1)).standard_normal())
    if late and random.random() < late:
        found += options.get("late_ms", 0.0) / 1000 * random.standard_exponential()
    return float(found)


def _clipped(deviation: float) -> float:
    return float(np.clip(deviation, -WIDEST, WIDEST))
