"""Test of a series of step times that ends the warm-up, in plain Python so that every rank computes the same answer.

Each value of the series is the mean step time of one block on the slowest rank.
"""

from __future__ import annotations

import itertools
import math
from statistics import median
from typing import Sequence

# Number of latest blocks tested for stationarity.
WINDOW = 6
# Relative difference between the medians of the window's halves: below CLOSE a trend does not matter; above FAR the
# series is not stationary, whatever its noise.
CLOSE, FAR = 0.01, 0.05
SIGNIFICANCE = 0.05


def is_stationary(series: Sequence[float]) -> bool:
    """Return True if the medians of the two halves of the last WINDOW values differ by at most CLOSE, or by at most FAR
    without a significant trend (Mann 1945, Kendall 1975; two-sided, exact). Shorter series are not stationary."""
    if len(series) < WINDOW:
        return False
    window = list(series[-WINDOW:])
    earlier, later = median(window[: WINDOW // 2]), median(window[WINDOW // 2 :])
    shift = abs(later - earlier) / later if later > 0 else math.inf
    return shift <= CLOSE or (shift <= FAR and trend_p_value(window) >= SIGNIFICANCE)


def trend_p_value(values: Sequence[float]) -> float:
    """Return the exact two-sided p-value of the Mann-Kendall test for a monotonic trend, counted over all orders of n
    values without ties."""
    n = len(values)
    s = sum((b > a) - (b < a) for a, b in itertools.combinations(values, 2))
    # orders[k]: permutations with k inversions (Mahonian numbers); S = n (n - 1) / 2 - 2 k.
    orders = [1]
    for length in range(2, n + 1):
        longer = [0] * (len(orders) + length - 1)
        for k, count in enumerate(orders):
            for more in range(length):
                longer[k + more] += count
        orders = longer
    pairs = n * (n - 1) // 2
    return sum(count for k, count in enumerate(orders) if abs(pairs - 2 * k) >= abs(s)) / math.factorial(n)
