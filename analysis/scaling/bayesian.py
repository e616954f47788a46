"""The Bayesian scaling model: priors shared by all series over how the cost of a sample grows, updated by the sizes of
one series.

The log of the cost of a sample (GPU-seconds) is

    log cost = log cost of one GPU + loss(size) + noise,    loss(size) = s · Σ b_k f_k(size)

f_k are, for the g GPUs of a node and again for the N nodes: a loss that appears once (1 from 2 on), a ring allreduce
2(n-1)/n, a tree log2 n, and contention n-1. A series has 1 to 5 sizes and cannot determine eight factors, so s, the
size of its losses, is log-normal and b_k are normal about the usual shares (Gelman et al. 2013, Bayesian Data Analysis,
chapter 5). Given s and the noise all is normal, so the posterior is exact (Rasmussen and Williams 2006, Gaussian
Processes for Machine Learning, section 2.2); s and the noise are integrated by quadrature. Nothing is drawn at random.

Two kinds of losses are averaged by their evidence (`Constants`). docs/prediction.md says how the constants were
chosen, and how well they predict systems that were left out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from analysis.scaling.series import RateSeries, Size
from analysis.stats.intervals import Interval
from harness.core.spec import WEAK

if TYPE_CHECKING:
    import numpy as np

LEVEL_TERMS = 4  # once, ring, tree, contention; inside nodes and between them


@dataclass(frozen=True)
class Kind:
    """A kind of losses. share: its prior probability. scale: median and log standard deviation of s. mean, sd: of the
    factors b, (8,): inside nodes, then between them. multiplies: whether the cost is multiplied by 1 + loss, instead of
    its log rising by the loss. per_step: whether losses are constant times per step of a constant global batch, whose
    share grows with the number of GPUs."""

    share: float
    scale: tuple[float, float]
    mean: tuple[float, ...]
    sd: tuple[float, ...]
    multiplies: bool = False
    per_step: bool = False


@dataclass(frozen=True)
class Constants:
    """communication: usual losses, and those of strong scaling that keeps the micro-batch by accumulating gradients.
    host: weak scaling limited by what all GPUs of a node share, such as reading data. fixed_time: strong scaling with
    a batch per GPU that shrinks: the first four factors are of launch cost, the ring inside nodes, n log n and n².
    noise: median and log standard deviation of the relative standard deviation of a measurement about the law.
    weak, strong: calibration of sizes beyond the largest measured, the factors by which the logs of 50 % and 90 %
    intervals are stretched.
    """

    communication: Kind
    host: Kind
    fixed_time: Kind
    noise: tuple[float, float]
    weak: tuple[float, float] = (1.0, 1.0)
    strong: tuple[float, float] = (1.0, 1.0)

    def kinds(self, scaling: str) -> tuple[Kind, Kind]:
        other = self.host if scaling == WEAK else self.fixed_time
        return dataclasses.replace(self.communication, share=1 - other.share), other


# Fitted by benchmarks/prediction.py to all of its series, except for `fixed_time`, which is set by hand. The errors and
# coverage that it shows are of systems that were left out of the same fit.
CONSTANTS = Constants(
    Kind(
        1.0,
        (1.0, 1.2),
        (0.0047, 0.0036, 0.0020, 0.00070, 0.0061, 0.0047, 0.0026, 0.00092),
        (0.0060, 0.0046, 0.0034, 0.0018, 0.0068, 0.0052, 0.0039, 0.0020),
    ),
    Kind(0.16, (0.063, 0.99), (0, 0, 0, 1.0, 0, 0.3, 0, 0.03), (0, 0, 0, 0.7, 0, 0.3, 0, 0.03), multiplies=True),
    Kind(
        0.5,
        (1.0, 2.0),
        (0.01, 0.003, 0.001, 0.001, 0.005, 0.005, 0.001, 0.001),
        (0.01, 0.003, 0.003, 0.006, 0.005, 0.005, 0.003, 0.003),
        multiplies=True,
        per_step=True,
    ),
    (0.012, 1.0),
    weak=(0.82, 1.0),
    strong=(1.0, 1.66),
)
# From a bandwidth: exposed time between nodes as a multiple of a ring allreduce at full speed, and its log standard
# deviation: less with overlap, more where traffic is not at full speed.
EXPOSED, EXPOSED_LOG_SD = 1.0, 1.0
# Without one: loss between two nodes and its log standard deviation, if only one number of nodes was measured.
BETWEEN = 0.05, 1.2
# Standard deviation of the log of the cost of one GPU: flat.
FLAT = 3.0

MOST_WIDENING = 3.0  # of the logs of an interval, if the law missed the largest measured size
# Beyond the largest measured size the law itself drifts: relative standard deviation per further multiple of that size.
DRIFT = 0.005
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)  # of a prediction
SCALES, NOISES, LINKS, WIDTH = 101, 11, 41, 3.0  # nodes of the quadrature, within so many standard deviations
MOST_STEPS, PRECISION = 100, 1e-9  # of a quantile, in log cost
# The first steps see every 17th component, which is prime to the nodes of the quadrature, up to this precision.
SAMPLED, ROUGHLY = 17, 1e-3


@dataclass(frozen=True)
class Predictive:
    """Predictive distribution of throughput in samples per second, as its QUANTILES."""

    quantiles: tuple[float, ...]

    @property
    def median(self) -> float:
        return self.quantiles[2]

    @property
    def central50(self) -> Interval:
        return Interval(self.median, self.quantiles[1], self.quantiles[3])

    @property
    def central90(self) -> Interval:
        return Interval(self.median, self.quantiles[0], self.quantiles[4])

    def stretched(self, of_50: float, of_90: float) -> Predictive:
        """Return it with the logs of its two intervals so many times as far from the median."""
        factors = (of_90, of_50, 1.0, of_50, of_90)
        pairs = zip(self.quantiles, factors, strict=True)
        return Predictive(tuple(self.median * (value / self.median) ** factor for value, factor in pairs))

    def document(self) -> dict[str, float]:
        """Return the object that --json prints."""
        low90, low50, median, high50, high90 = self.quantiles
        return {"median": median, "low50": low50, "high50": high50, "low90": low90, "high90": high90}


@dataclass(frozen=True)
class Prior:
    """between: median loss between two nodes, if derived from a bandwidth (analysis/scaling/single_node.py).
    noise: relative standard deviation between repeated runs, added to the usual one."""

    between: float | None = None
    noise: float | None = None
    constants: Constants = CONSTANTS


@dataclass(frozen=True)
class Posterior:
    """What the measured sizes say. log_costs: of a sample in GPU-seconds; weights: equivalent numbers of measurements,
    usually 1 each."""

    sizes: tuple[Size, ...]
    log_costs: np.ndarray
    weights: np.ndarray
    scaling: str
    prior: Prior

    @cached_property
    def widening(self) -> float:
        """Return the factor by which log intervals widen: more than 1 if the largest size would not have been in the 90
        % interval, not calibrated, predicted from those up to half of it."""
        import numpy as np

        kept = [i for i, size in enumerate(self.sizes) if 2 * size.gpus <= self.sizes[-1].gpus]
        if not kept:
            return 1.0
        half = dataclasses.replace(
            self, sizes=self.sizes[: len(kept)], log_costs=self.log_costs[kept], weights=self.weights[kept]
        )
        interval = half._mixture(self.sizes[-1], of_measurement=1.0).central90
        low, high = interval.ends
        assert low is not None
        assert high is not None
        off = math.log(self.sizes[-1].gpus / interval.estimate) - float(np.asarray(self.log_costs)[-1])
        return min(MOST_WIDENING, max(1.0, off / math.log((low if off < 0 else high) / interval.estimate)))

    def predict(self, size: Size) -> Predictive:
        """Predict a single measurement at this size, including noise."""
        return self._calibrated(size, self._mixture(size, of_measurement=1.0))

    def predict_mean(self, size: Size) -> Predictive:
        """Predict the mean of many measurements at this size, whose interval further measurements can narrow."""
        return self._calibrated(size, self._mixture(size, of_measurement=0.0))

    def _calibrated(self, size: Size, predicted: Predictive) -> Predictive:
        constants = self.prior.constants
        of_50, of_90 = constants.weak if self.scaling == WEAK else constants.strong
        if size.gpus <= self.sizes[-1].gpus:
            of_50, of_90 = 1.0, 1.0
        return predicted.stretched(self.widening * of_50, self.widening * of_90)

    def _mixture(self, size: Size, of_measurement: float) -> Predictive:
        import numpy as np

        kinds = self.prior.constants.kinds(self.scaling)
        parts = [self._components(kind, size, of_measurement) for kind in kinds]
        log_weight, mean, variance = (np.concatenate(rows) for rows in zip(*parts, strict=True))
        return _quantiles(np.exp(log_weight - log_weight.max()), mean, np.sqrt(variance), size.gpus)

    def _components(self, kind: Kind, size: Size, of_measurement: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return log weights, means and variances of the log cost at this size, one per node of the quadrature."""
        import numpy as np

        count = len(self.sizes)
        factors = terms((*self.sizes, size), kind, min(*self.sizes, size))
        scale, scale_weight = _nodes(*kind.scale, SCALES)
        usual, log_sd = self.prior.constants.noise
        noise, noise_weight = _nodes(math.hypot(usual, self.prior.noise or 0.0), log_sd, NOISES)
        # Losses inside nodes say little about the links between them, which have a prior of their own until measured.
        unknown_link = {own.nodes for own in self.sizes} == {self.sizes[0].nodes} != {size.nodes}
        if unknown_link:
            factors[:, LEVEL_TERMS:] = 0
        loss = scale[:, None] * (factors @ np.array(kind.mean))
        spread = scale[:, None, None] * factors * np.array(kind.sd)
        if kind.multiplies:
            spread, loss = spread / (1 + loss)[..., None], np.log1p(loss)
        covariance = spread @ spread.transpose(0, 2, 1) + FLAT**2
        # Eigenvectors of the measured sizes serve every noise; weights turn each size into so many measurements.
        root = np.sqrt(self.weights)
        values, vectors = np.linalg.eigh(root[:, None] * covariance[:, :count, :count] * root)
        residuals = np.einsum("sij,si->sj", vectors, root * (self.log_costs - loss[:, :count]))[:, None]
        towards = np.einsum("sij,si->sj", vectors, root * covariance[:, :count, count])[:, None]
        variances = values.clip(0)[:, None] + noise[:, None] ** 2
        log_weight = math.log(kind.share) + scale_weight[:, None] + noise_weight
        log_weight = log_weight - 0.5 * (residuals**2 / variances + np.log(variances)).sum(-1)
        mean = loss[:, count, None] + (residuals * towards / variances).sum(-1)
        variance = covariance[:, count, count, None] - (towards**2 / variances).sum(-1)
        drift = DRIFT * max(0.0, size.gpus / self.sizes[-1].gpus - 1)
        variance = variance.clip(1e-12) + of_measurement * noise**2 + drift**2
        if not unknown_link:
            return log_weight.ravel(), mean.ravel(), variance.ravel()
        median, log_sd = (EXPOSED * self.prior.between, EXPOSED_LOG_SD) if self.prior.between else BETWEEN
        ring, ring_weight = _nodes(median, log_sd, LINKS)
        before, after = (2 * (nodes - 1) / nodes for nodes in (self.sizes[0].nodes, size.nodes))
        if kind.per_step:  # the prior is of the step at the largest measured size, which shrinks from there on
            after *= size.gpus / self.sizes[-1].gpus
        likely = log_weight > log_weight.max() - 12  # others add less than 0.1 % to any quantile
        mean = mean[likely][:, None] + np.log1p(ring * after) - np.log1p(ring * before)
        return (log_weight[likely][:, None] + ring_weight).ravel(), mean.ravel(), np.repeat(variance[likely], LINKS)


def terms(sizes: Sequence[Size], kind: Kind, smallest: Size) -> np.ndarray:
    """Return the factors f_k at each size, shape (sizes, 8)."""
    import numpy as np

    gpus = np.array([size.gpus for size in sizes], float)
    nodes = np.array([size.nodes for size in sizes], float)
    inside = _level(gpus / nodes)
    if not kind.per_step:
        return np.stack([*inside, *_level(nodes)], axis=1)
    # A step of a constant global batch computes 1/n as much per GPU, so a fixed time is n times as large a share.
    times = gpus / smallest.gpus
    fixed = [times - 1, times * inside[1], times * np.log2(times), times * (times - 1) / 8]
    return np.stack([*fixed, *(times * row for row in _level(nodes))], axis=1)


def _level(n: np.ndarray) -> list[np.ndarray]:
    import numpy as np

    return [(n > 1).astype(float), 2 * (n - 1) / n, np.log2(n), n - 1]


def _nodes(median: float, log_sd: float, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nodes of a log-normal and their log weights."""
    import numpy as np

    z = np.linspace(-WIDTH, WIDTH, count)
    return median * np.exp(log_sd * z), -0.5 * z**2


def _quantiles(weight: np.ndarray, mean: np.ndarray, sd: np.ndarray, gpus: int) -> Predictive:
    """Return quantiles of throughput, of a mixture of normal log costs.

    With links that were not measured there are 90,000 components: the first steps see only some of them.
    """
    import numpy as np
    from scipy.special import ndtri

    kept = weight > 1e-7 * weight.max()
    weight, mean, sd = weight[kept] / weight[kept].sum(), mean[kept], sd[kept]
    wanted = 1 - np.array(QUANTILES)
    centre = weight @ mean
    at = centre + np.sqrt(weight @ (sd**2 + (mean - centre) ** 2)) * ndtri(wanted)
    few = slice(None, None, SAMPLED)
    at = _newton(at, wanted, weight[few] / weight[few].sum(), mean[few], sd[few], ROUGHLY)
    at = _newton(at, wanted, weight, mean, sd, PRECISION)
    return Predictive(tuple(map(float, gpus / np.exp(at))))


def _newton(
    at: np.ndarray, wanted: np.ndarray, weight: np.ndarray, mean: np.ndarray, sd: np.ndarray, precision: float
) -> np.ndarray:
    """Return where the mixture's distribution function has the wanted values, by Newton's method within a bracket."""
    import numpy as np
    from scipy.special import ndtr

    low = np.full(len(wanted), (mean - 9 * sd).min())
    high = np.full(len(wanted), (mean + 9 * sd).max())
    for _ in range(MOST_STEPS):
        z = (at[:, None] - mean) / sd
        excess = ndtr(z) @ weight - wanted
        low, high = np.where(excess < 0, at, low), np.where(excess < 0, high, at)
        density = np.exp(-0.5 * z**2) @ (weight / sd) / math.sqrt(2 * math.pi)
        with np.errstate(divide="ignore", invalid="ignore"):
            after = at - excess / density
        before, at = at, np.where((after >= low) & (after <= high), after, (low + high) / 2)
        if np.abs(at - before).max() < precision:
            break
    return at


def posterior(series: RateSeries, prior: Prior | None = None) -> Posterior:
    """Return the posterior given the whole series."""
    return posteriors(series, [[True] * len(series.sizes)], prior)[0]


def posteriors(series: RateSeries, kept: Sequence[Sequence[float]], prior: Prior | None = None) -> list[Posterior]:
    """Return the posterior given each part of the series. kept: per part, the weight of each size (True, False, or an
    equivalent number of measurements); at least one is not 0. prior: None: the usual one."""
    import numpy as np

    prior = Prior(noise=series.noise) if prior is None else prior
    found = []
    for marks in kept:
        used = [i for i, mark in enumerate(marks) if mark]
        weights = np.array([marks[i] for i in used], float)
        log_costs = np.log(series.costs[used])
        found.append(Posterior(tuple(series.sizes[i] for i in used), log_costs, weights, series.scaling, prior))
    return found
