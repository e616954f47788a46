"""Trivial predictors, printed beside every prediction."""

from __future__ import annotations

from analysis.scaling.series import RateSeries, Size
from analysis.scaling.textbook import best_by_leave_one_out, fit
from harness.core.spec import WEAK

LINEAR, FLAT, RING, BEST_LAW, EXTRA_P = "linear", "flat", "ring term", "best law", "Extra-P"


def linear(series: RateSeries, size: Size) -> float:
    """Return samples per second at the per-GPU rate of the smallest measured size."""
    return series.rates[0] / series.sizes[0].gpus * size.gpus


def flat(series: RateSeries, size: Size) -> float:
    """Return samples per second at the per-GPU rate of the largest measured size."""
    return series.rates[-1] / series.largest.gpus * size.gpus


def ring_term(series: RateSeries, size: Size) -> float:
    """Fit step seconds = a + b (n-1)/n by least squares. n: for a size on several nodes, the nodes, over the sizes with
    as many GPUs per node; else GPUs. With only one such size: flat."""
    import numpy as np

    if size.nodes > 1:
        used = [i for i, own in enumerate(series.sizes) if own.gpus_per_node == size.gpus_per_node]
        counts, target = [series.sizes[i].nodes for i in used], size.nodes
    else:
        used = list(range(len(series.sizes)))
        counts, target = [own.gpus for own in series.sizes], size.gpus
    if len(used) < 2:
        return flat(series, size)
    n = np.array(counts, float)
    weight = 1.0 if series.scaling == WEAK else np.array([series.sizes[i].gpus for i in used], float)
    columns = np.stack([np.ones_like(n), weight * (n - 1) / n], axis=1)
    solution = np.linalg.lstsq(columns, series.costs[used], rcond=None)[0]
    cost = solution[0] + solution[1] * (1 if series.scaling == WEAK else size.gpus) * (target - 1) / target
    return size.gpus / float(cost) if cost > 0 else flat(series, size)


def best_law(series: RateSeries, size: Size) -> float | None:
    """Predict with the textbook law of smallest leave-one-out error; None if none can be judged."""
    law = best_by_leave_one_out(series)
    fitted = None if law is None else fit(law, series)
    return None if fitted is None else fitted.rate(size)
