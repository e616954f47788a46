"""Intervals of shares."""

from __future__ import annotations

import math

from analysis.stats.intervals import Interval

Z = 1.959963984540054  # two-sided 5 % of the standard normal distribution


def wilson(count: int, total: int) -> Interval:
    """The share count / total with its Wilson score interval (Wilson, JASA 22, 1927), at 95 %. total: at least 1."""
    share, squared = count / total, Z**2 / total
    centre = (share + squared / 2) / (1 + squared)
    half = Z / (1 + squared) * math.sqrt(share * (1 - share) / total + squared / (4 * total))
    # At the ends rounding may leave a share of 0 or 1 outside.
    return Interval(share, max(0.0, min(share, centre - half)), min(1.0, max(share, centre + half)), (total,))
