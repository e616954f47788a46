"""Steadiness of a measurement: outliers and trends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from statistics import quantiles
from typing import Any, NamedTuple

# A trend is called drift if it is both statistically significant and large enough to matter.
DRIFT_ALPHA, DRIFT_FRACTION = 0.01, 0.02
FEWEST_VALUES = 6  # with fewer, no ordering is as rare as DRIFT_ALPHA
# The blocks of long runs are averaged into this many groups: that keeps a trend and weakens autocorrelation.
MOST_VALUES = 40
FENCE = 1.5  # interquartile ranges beyond the quartiles (Tukey, Exploratory Data Analysis, 1977)


class Trend(NamedTuple):
    change: float  # from the first to the last value along the Theil-Sen line, relative to the median
    p_value: float  # two-sided, of the Mann-Kendall test

    @property
    def is_drift(self) -> bool:
        return self.p_value < DRIFT_ALPHA and abs(self.change) > DRIFT_FRACTION


def outliers(values: Sequence[float]) -> list[int]:
    """Indices of the values outside Tukey's fences; none with fewer than four values, which have no quartiles."""
    if len(values) < 4:
        return []
    first, _, third = quantiles(values, n=4, method="inclusive")
    reach = FENCE * (third - first)
    return [i for i, value in enumerate(values) if not first - reach <= value <= third + reach]


def trend(times: Sequence[float], values: Sequence[float]) -> Trend | None:
    """The Mann-Kendall test (Mann, Econometrica 13, 1945), normal approximation with tie correction, and the Theil-Sen
    slope (Sen, JASA 63, 1968). None with fewer than FEWEST_VALUES values, or without a positive median.

    times: ascending. There is no correction for autocorrelation (Yue and Wang, Water Resources Management 18, 2004): it
    hides what is looked for here, a step or a bend in the step time.
    """
    import numpy as np

    if len(values) < FEWEST_VALUES:
        return None
    groups = min(len(values), MOST_VALUES)
    x, y = np.asarray(times, float), np.asarray(values, float)
    if len(y) > groups:
        x, y = (_means(all_, groups) for all_ in (x, y))
    middle = float(np.median(y))
    early, late = _pairs(groups)
    spans, rises = x[late] - x[early], y[late] - y[early]
    if not middle > 0 or not (spans > 0).all():
        return None
    slope = float(np.median(rises / middle / spans))
    score = float(np.sign(rises).sum())
    ties = np.unique(y, return_counts=True)[1]
    variance = (_kendall(groups) - float(_kendall(ties).sum())) / 18
    if not variance:
        return Trend(0.0, 1.0)
    z = max(0.0, abs(score) - 1) / math.sqrt(variance)
    return Trend(slope * float(x[-1] - x[0]), math.erfc(z / math.sqrt(2)))


def _means(values: Any, groups: int) -> Any:
    """Means of consecutive groups, of which the first have one value more if they cannot be equal."""
    import numpy as np

    size, longer = divmod(len(values), groups)
    head, tail = values[: longer * (size + 1)], values[longer * (size + 1) :]
    return np.concatenate([head.reshape(longer, size + 1).mean(axis=1), tail.reshape(-1, size).mean(axis=1)])


@cache
def _pairs(n: int) -> Any:
    """Indices of the earlier and of the later value of all pairs of n values."""
    import numpy as np

    return np.triu_indices(n, 1)


def _kendall(n: Any) -> Any:
    """18 times the variance of the Mann-Kendall score of n values under the null hypothesis."""
    return n * (n - 1) * (2 * n + 5)
