"""The duration of a block from which some ranks left something out. Standard library only, Python 3.8 syntax."""

from __future__ import annotations

from typing import Sequence, Tuple


def slowest_seconds(parts: Sequence[Tuple[float, float]]) -> float:
    """Return the seconds of a block on its slowest rank, for which the others wait.

    parts: for each rank the seconds of the block, and those left out of them, such as saving a checkpoint. Ranks that
    train together end a block together, so one that left out less has waited for the others meanwhile.
    """
    most = max(left_out for _, left_out in parts)
    return max(seconds - (most - left_out) for seconds, left_out in parts)
