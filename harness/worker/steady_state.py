"""Two tests on series of step times, in plain Python: every rank gets the same answer from the same numbers.

Whether a series has come to rest, which ends the warm-up, and how surely its median is known, which ends the timed
steps. A value of the series is the mean step time of one block, on the slowest rank. Nothing here knows a framework.
"""

from __future__ import annotations

import itertools
import math
from statistics import median
from typing import Optional, Sequence, Tuple

# Blocks that the first test looks at, the latest ones.
WINDOW = 6
# Medians of the window's halves, relative: so close that a trend between them does not matter, and so far apart that
# the step time has not come to rest, whatever its noise.
CLOSE, FAR = 0.01, 0.05
SIGNIFICANCE = 0.05
CONFIDENCE = 0.95


def is_stationary(series: Sequence[float]) -> bool:
    """Whether the last WINDOW values are at rest: the medians of their two halves differ by at most CLOSE; or by at
    most FAR, and there is no significant trend (Mann 1945, Kendall 1975; two-sided, exact). A shorter series is not."""
    if len(series) < WINDOW:
        return False
    window = list(series[-WINDOW:])
    earlier, later = median(window[: WINDOW // 2]), median(window[WINDOW // 2 :])
    shift = abs(later - earlier) / later if later > 0 else math.inf
    return shift <= CLOSE or (shift <= FAR and trend_probability(window) >= SIGNIFICANCE)


def trend_probability(values: Sequence[float]) -> float:
    """Of Mann-Kendall's S being as far from 0 as here, or farther, in any order of n values without ties: the two-sided
    p of the test for a monotonic trend. Counted over all orders."""
    n = len(values)
    s = sum((b > a) - (b < a) for a, b in itertools.combinations(values, 2))
    # How many orders have k pairs the wrong way round (Mahonian numbers): S = n (n - 1) / 2 - 2 k.
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
    """The narrowest symmetric pair of order statistics that holds the median with at least CONFIDENCE, whatever the
    distribution of independent values (Le Boudec 2010, section 2.2; Hoefler and Belli 2015, rule 6). None below 6
    values: no pair does."""
    n = len(values)
    tail, below = 0, 0
    # below: how many values may lie outside on each side; the tail is that of the binomial distribution with p = 1/2.
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
    """Of the interval of the median, by the median. None where there is no interval."""
    interval, middle = median_interval(values), median(values) if values else 0.0
    if interval is None or not middle > 0:
        return None
    return (interval[1] - interval[0]) / 2 / middle
