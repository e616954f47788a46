"""Textbook laws with one set of parameters per series, fitted by least squares.

A law gives the cost of a sample, in GPU-seconds, relative to one GPU: r(n) = 1 if scaling is ideal, and throughput is
n / (cost of one GPU x r(n)). Parameters are not negative. Formulas and sources: docs/prediction.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.scaling.communication import expected_maximum
from analysis.scaling.series import RateSeries, Size
from harness.core.spec import WEAK

if TYPE_CHECKING:
    import numpy as np

# (GPUs, nodes, weight of a fixed time per step, parameters) -> r.
Relative = Callable[["np.ndarray", "np.ndarray", "np.ndarray", "np.ndarray"], "np.ndarray"]


@dataclass(frozen=True)
class Law:
    name: str
    parameters: tuple[str, ...]
    relative: Relative
    formula: str
    source: str


@dataclass(frozen=True)
class Fit:
    """A fitted law. cost: of one GPU, GPU-seconds per sample. values: of the law's parameters; intervals: 90 %, from
    the curvature of the residuals and Student's t (Seber and Wild 1989, section 5.1); None if there are no more sizes
    than unknowns. known: whether the sizes determine the parameter; others are 0.
    """

    law: Law
    scaling: str
    cost: float
    values: tuple[float, ...]
    intervals: tuple[tuple[float, float], ...] | None
    known: tuple[bool, ...]

    def rate(self, size: Size) -> float:
        """Predict samples per second."""
        import numpy as np

        relative = self.law.relative(*_arguments([size], self.scaling), np.array(self.values))
        return size.gpus / (self.cost * float(relative[0]))


def _ring(n: np.ndarray) -> np.ndarray:
    return 2 * (n - 1) / n


def _imbalance(n: np.ndarray) -> np.ndarray:
    import numpy as np

    return np.array([expected_maximum(each) for each in n])


def _log2(n: np.ndarray) -> np.ndarray:
    import numpy as np

    return np.log2(n)


LAWS = (
    Law("linear", (), lambda n, m, w, p: 1 + 0 * n, "r = 1", "no loss at all"),
    Law("amdahl", ("serial",), lambda n, m, w, p: 1 + p[0] * (n - 1), "r = 1 + s(n-1)", "Amdahl 1967"),
    Law(
        "gustafson",
        ("serial",),
        lambda n, m, w, p: n / (n - min(p[0], 0.999) * (n - 1)),
        "r = n / (n - s(n-1))",
        "Gustafson 1988",
    ),
    Law(
        "usl",
        ("contention", "coherency"),
        lambda n, m, w, p: 1 + p[0] * (n - 1) + p[1] * n * (n - 1),
        "r = 1 + σ(n-1) + κn(n-1)",
        "Gunther 2007, Guerrilla Capacity Planning, chapter 4",
    ),
    Law(
        "ring",
        ("inside", "between"),
        lambda n, m, w, p: 1 + w * (p[0] * _ring(n / m) + p[1] * _ring(m)),
        "r = 1 + a·2(g-1)/g + b·2(N-1)/N",
        "Patarasuk and Yuan 2009, bandwidth optimal all-reduce",
    ),
    Law(
        "tree",
        ("inside", "between"),
        lambda n, m, w, p: 1 + w * (p[0] * _log2(n / m) + p[1] * _log2(m)),
        "r = 1 + a·log2(g) + b·log2(N)",
        "Thakur, Rabenseifner and Gropp 2005, latency of a tree",
    ),
    Law(
        "communication",
        ("inside", "between", "imbalance"),
        lambda n, m, w, p: 1 + w * (p[0] * _ring(n / m) + p[1] * _ring(m)) + p[2] * _imbalance(n),
        "r = 1 + a·2(g-1)/g + b·2(N-1)/N + s·E[max of n]",
        "ring of each link level, and waiting for the slowest (Blom 1958)",
    ),
)


def fit(law: Law, series: RateSeries) -> Fit | None:
    """Fit by least squares of logarithms, i.e. of relative errors; None if there are fewer sizes than unknowns that
    they determine. A parameter that they do not (for links between nodes, on one node) is 0."""
    import numpy as np
    from scipy.optimize import least_squares
    from scipy.special import stdtrit

    arguments, costs = _arguments(series.sizes, series.scaling), series.costs
    spoken = _spoken(law, arguments)
    unknown = 1 + len(spoken)
    if len(costs) < unknown:
        return None
    scale = costs.min()

    def parameters(free: np.ndarray) -> np.ndarray:
        values = np.zeros(len(law.parameters))
        values[spoken] = free
        return values

    def residuals(free: np.ndarray) -> np.ndarray:
        return np.log(costs / scale) - free[0] - np.log(law.relative(*arguments, parameters(free[1:])))

    lowest = np.array([-np.inf] + [0.0] * len(spoken))
    found = least_squares(residuals, np.array([0.0] + [0.01] * len(spoken)), bounds=(lowest, np.inf), xtol=1e-12)
    values = parameters(found.x[1:])
    intervals = None
    df = len(costs) - unknown
    if df > 0:
        variance = np.linalg.pinv(found.jac.T @ found.jac) * (residuals(found.x) ** 2).sum() / df
        half = np.zeros(len(law.parameters))
        half[spoken] = stdtrit(df, 0.95) * np.sqrt(np.diag(variance)[1:])
        intervals = tuple((max(0.0, float(v - h)), float(v + h)) for v, h in zip(values, half, strict=True))
    cost = scale * float(np.exp(found.x[0]))
    known = tuple(i in spoken for i in range(len(values)))
    return Fit(law, series.scaling, cost, tuple(map(float, values)), intervals, known)


def leave_one_out(law: Law, series: RateSeries) -> float | None:
    """Return the mean absolute relative error over the sizes, each predicted from all others; None if one cannot be, or
    with two sizes, since from one size every law is linear."""
    if len(series.sizes) < 3:
        return None
    errors = []
    for i, (size, rate) in enumerate(zip(series.sizes, series.rates, strict=True)):
        fitted = fit(law, series.only([j != i for j in range(len(series.sizes))]))
        if fitted is None:
            return None
        errors.append(abs(fitted.rate(size) / rate - 1))
    return sum(errors) / len(errors)


def best_by_leave_one_out(series: RateSeries) -> Law | None:
    """Return the law with the smallest leave-one-out error; None with two sizes or fewer."""
    errors = {law: error for law in LAWS if (error := leave_one_out(law, series)) is not None}
    return min(errors, key=lambda law: errors[law]) if errors else None


def _arguments(sizes: Sequence[Size], scaling: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return GPUs, nodes, and the weight of a fixed time per step: with a constant global batch a step computes 1/n as
    much, so a fixed time is n times as large a share."""
    import numpy as np

    gpus = np.array([size.gpus for size in sizes], float)
    nodes = np.array([size.nodes for size in sizes], float)
    return gpus, nodes, np.ones_like(gpus) if scaling == WEAK else gpus


def _spoken(law: Law, arguments: tuple[np.ndarray, np.ndarray, np.ndarray]) -> list[int]:
    """Return indices of the parameters that make a difference between the sizes."""
    import numpy as np

    spoken = []
    for i in range(len(law.parameters)):
        only = np.zeros(len(law.parameters))
        only[i] = 0.1
        if np.ptp(law.relative(*arguments, only)) > 1e-12:
            spoken.append(i)
    return spoken
