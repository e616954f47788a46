"""Two tests on series of step times, in plain Python so that every rank computes the same answer.

Stationarity ends the warm-up; the precision of the median ends the timed steps. Each value of a series is the mean step
time of one block on the slowest rank.
"""

from __future__ import annotations

import itertools
import math
from statistics import median
from typing import Optional, Sequence, Tuple

# Number of latest blocks tested for stationarity.
WINDOW = 6
# Relative difference between the medians of the window's halves: below CLOSE a trend does not matter; above FAR the
# series is not stationary, whatever its noise.
CLOSE, FAR = 0.01, 0.05
SIGNIFICANCE = 0.05
CONFIDENCE = 0.95


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


def median_interval(values: Sequence[float]) -> Optional[Tuple[float, float]]:
    """Return the narrowest symmetric pair of order statistics that covers the median with at least CONFIDENCE, whatever
    the distribution of independent values (Le Boudec 2010, section 2.2; Hoefler and Belli 2015, rule 6); None below 6
    values."""
    n = len(values)
    tail, below = 0, 0
    # below: values excluded on each side; tail: its binomial probability (p = 1/2) times 2^n.
    while below < n // 2:
        tail += math.comb(n, below)
        if 2 * tail > (1 - CONFIDENCE) * 2**n:
            break
        below += 1
    if not below:
        return None
    ordered = sorted(values)
    return ordered[below - 1], ordered[n - below]


def relative_half_width(values: Sequence[float]) -> Optional[float]:
    """Return half the width of the median's interval divided by the median; None without an interval."""
    interval, middle = median_interval(values), median(values) if values else 0.0
    if interval is None or not middle > 0:
        return None
    return (interval[1] - interval[0]) / 2 / middle
