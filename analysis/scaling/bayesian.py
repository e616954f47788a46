"""The pooled law: communication and contention on each link level, with one prior for all series.

The cost of a sample relative to one GPU, for N nodes of g GPUs each:

    r = 1 + a·2(g-1)/g + b·(g-1) + c·2(N-1)/N + d·(N-1)

a, c: the part of a ring allreduce that computing does not hide (bandwidth). b, d: costs that grow with every further
participant: latency of the ring, contention for shared resources (host, switch, storage), as in Gunther's law. A series
has 1 to 5 sizes and cannot determine four parameters, so they are shrunk towards usual values (Gelman et al. 2013,
Bayesian Data Analysis, chapter 5): the constants below, the same for all series and both link levels.
docs/prediction.md says how they were chosen, and how well they predict unseen series.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.scaling.series import RateSeries, Size
from analysis.stats.intervals import Interval
from harness.core.spec import WEAK

if TYPE_CHECKING:
    import numpy as np

LEVELS = 2  # links inside the node, links between nodes
# The losses are log-normal. Medians, as shares of a step with two participants.
RING_MEDIAN, GROWTH_MEDIAN = 0.015, 0.005
LOSS_LOG_SD = 2.0  # 90 % within a factor of 27: wider than the published series, since other machines may differ more
# Relative standard deviation of a measurement about the law: noise between repeats, and misfit of the law.
NOISE_MEDIAN, NOISE_LOG_SD = 0.01, 0.5
# Beyond the largest measured size, misfit grows: relative standard deviation per further multiple of that size.
DRIFT = 0.005

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)  # of a prediction
PRIOR_DRAWS, WALKERS, MOVES, KEPT = 8192, 512, 80, 8
SEED = 20110805  # of the sampler, for reproducible figures


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

    def document(self) -> dict[str, float]:
        """Return the object that --json prints."""
        low90, low50, median, high50, high90 = self.quantiles
        return {"median": median, "low50": low50, "high50": high50, "low90": low90, "high90": high90}


@dataclass(frozen=True)
class Posterior:
    """Equally probable draws. losses: (draws, 4), as a, b, c, d above; noise: (draws,); log_cost: (draws,), log of one
    GPU's GPU-seconds per sample; sizes: total weight of the measured sizes, their number if each counts once."""

    losses: np.ndarray
    noise: np.ndarray
    log_cost: np.ndarray
    sizes: float
    largest: int
    scaling: str

    def predict(self, size: Size) -> Predictive:
        """Predict a single measurement at this size, including noise."""
        import numpy as np

        return _predictive(size.gpus / np.exp(self._log_costs(size, of_measurement=1.0)))

    def predict_mean(self, size: Size) -> Predictive:
        """Predict the mean of many measurements at this size, whose interval further measurements can narrow."""
        import numpy as np

        return _predictive(size.gpus / np.exp(self._log_costs(size, of_measurement=0.0)))

    def _log_costs(self, size: Size, of_measurement: float) -> np.ndarray:
        import numpy as np

        relative = np.log1p(self.losses @ terms([size], self.scaling)[:, 0])
        drift = DRIFT * max(0.0, size.gpus / self.largest - 1)
        spread = np.sqrt(self.noise**2 * (of_measurement + 1 / self.sizes) + drift**2)
        # Normal quantiles in a fixed random order instead of normal draws reduce sampling noise.
        middles = (np.arange(len(spread)) + 0.5) / len(spread)
        return self.log_cost + relative + spread * np.random.default_rng(SEED).permutation(_normal_quantile(middles))


@dataclass(frozen=True)
class Prior:
    """Means and standard deviations of the logarithms of a, b, c, d and the noise; shape (5,) each."""

    mean: np.ndarray
    sd: np.ndarray


def usual_prior(between_ring: float | None = None, noise: float | None = None) -> Prior:
    """Return the usual prior. between_ring: median of c if derived from a bandwidth (analysis/scaling/single_node.py).
    noise: measured relative standard deviation between repeated runs, added to the usual one."""
    import numpy as np

    medians = [RING_MEDIAN, GROWTH_MEDIAN] * LEVELS + [math.hypot(NOISE_MEDIAN, noise or 0.0)]
    if between_ring is not None:
        medians[LEVELS] = between_ring
    return Prior(np.log(medians), np.array([LOSS_LOG_SD] * 2 * LEVELS + [NOISE_LOG_SD]))


def terms(sizes: Sequence[Size], scaling: str) -> np.ndarray:
    """Return the factors of a, b, c, d at each size, shape (4, sizes). With a constant global batch, a step computes
    1/n as much, so its losses are n times as large a share."""
    import numpy as np

    gpus = np.array([size.gpus for size in sizes], float)
    nodes = np.array([size.nodes for size in sizes], float)
    inside = gpus / nodes
    rows = [term for n in (inside, nodes) for term in (2 * (n - 1) / n, n - 1)]
    return np.array(rows) * (1 if scaling == WEAK else gpus)


def posterior(series: RateSeries, prior: Prior | None = None) -> Posterior:
    """Return the posterior given the whole series."""
    return posteriors(series, [[True] * len(series.sizes)], prior)[0]


def posteriors(series: RateSeries, kept: Sequence[Sequence[float]], prior: Prior | None = None) -> list[Posterior]:
    """Return the posterior given each part of the series. kept: per part, the weight of each size (True, False, or an
    equivalent number of measurements); at least one is not 0. prior: None: the usual one.

    Draws from the prior are weighted by the likelihood and then moved by the affine-invariant ensemble sampler (Goodman
    and Weare 2010), all parts at once. The cost of one GPU has a flat prior and is integrated out.
    """
    import numpy as np

    prior = usual_prior(noise=series.noise) if prior is None else prior
    marks = np.array(kept, float)
    model = _Model(terms(series.sizes, series.scaling), np.log(series.costs), marks, prior)
    random = np.random.default_rng(SEED)
    walkers = _start(model, random)
    drawn = _move(model, walkers, random)
    found = []
    for part in range(len(marks)):
        noise = np.exp(drawn[part][:, -1])
        log_cost = model.log_cost(drawn)[part]
        losses = np.exp(drawn[part][:, :-1])
        largest = max(size.gpus for size, is_kept in zip(series.sizes, kept[part], strict=True) if is_kept)
        found.append(Posterior(losses, noise, log_cost, float(marks[part].sum()), largest, series.scaling))
    return found


@dataclass(frozen=True)
class _Model:
    terms: np.ndarray  # (losses, sizes)
    log_costs: np.ndarray  # (sizes,)
    marks: np.ndarray  # (parts, sizes): weights; 0 if a size is not kept, else usually 1
    prior: Prior

    def _differences(self, draws: np.ndarray) -> np.ndarray:
        """Log of the measured cost minus log of the law's with one-GPU cost 1: (parts, draws, sizes)."""
        import numpy as np

        return self.log_costs - np.log1p(np.exp(draws[..., :-1]) @ self.terms)

    def log_cost(self, draws: np.ndarray) -> np.ndarray:
        """Log of the best-fitting cost of one GPU: (parts, draws)."""
        marks = self.marks[:, None]
        return (self._differences(draws) * marks).sum(-1) / marks.sum(-1)

    def log_likelihood(self, draws: np.ndarray) -> np.ndarray:
        """Log-likelihood, (parts, draws). draws: (parts, draws, losses and noise), logarithms."""
        import numpy as np

        marks = self.marks[:, None]
        differences = self._differences(draws)
        count = marks.sum(-1)
        mean = (differences * marks).sum(-1) / count
        squares = (marks * (differences - mean[..., None]) ** 2).sum(-1)
        log_noise = draws[..., -1]
        return -(count - 1) * log_noise - 0.5 * squares * np.exp(-2 * log_noise)

    def log_posterior(self, draws: np.ndarray) -> np.ndarray:
        return self.log_likelihood(draws) - 0.5 * (((draws - self.prior.mean) / self.prior.sd) ** 2).sum(-1)


def _start(model: _Model, random: np.random.Generator) -> np.ndarray:
    """Initialise the walkers, (parts, walkers, parameters), with prior draws resampled by their likelihood."""
    import numpy as np

    prior, parts = model.prior, len(model.marks)
    draws = prior.mean + prior.sd * random.standard_normal((PRIOR_DRAWS, len(prior.mean)))
    likelihood = model.log_likelihood(np.broadcast_to(draws, (parts, *draws.shape)))
    shares = np.exp(likelihood - likelihood.max(axis=1, keepdims=True))
    walkers = np.empty((parts, WALKERS, len(prior.mean)))
    for part in range(parts):
        edges = np.cumsum(shares[part])
        chosen = np.searchsorted(edges / edges[-1], (np.arange(WALKERS) + random.random()) / WALKERS)
        walkers[part] = draws[random.permutation(chosen.clip(0, PRIOR_DRAWS - 1))]
    # The same draw may have been taken many times; jitter lets the ensemble span all directions.
    return walkers + 0.05 * prior.sd * random.standard_normal(walkers.shape)


def _move(model: _Model, walkers: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Run stretch moves and return draws from their second half: (parts, KEPT x WALKERS, parameters)."""
    import numpy as np

    parts, _, dimensions = walkers.shape
    half = WALKERS // 2
    density = model.log_posterior(walkers)
    kept = []
    for move in range(1, MOVES + 1):
        for mine, other in ((slice(0, half), slice(half, None)), (slice(half, None), slice(0, half))):
            stretch = (1 + random.random((parts, half))) ** 2 / 2
            partners = random.integers(0, half, (parts, half))[..., None]
            partner = np.take_along_axis(walkers[:, other], partners, axis=1)
            proposed = partner + stretch[..., None] * (walkers[:, mine] - partner)
            proposed_density = model.log_posterior(proposed)
            gain = (dimensions - 1) * np.log(stretch) + proposed_density - density[:, mine]
            taken = np.log(random.random((parts, half))) < gain
            walkers[:, mine] = np.where(taken[..., None], proposed, walkers[:, mine])
            density[:, mine] = np.where(taken, proposed_density, density[:, mine])
        if move > MOVES // 2 and move % (MOVES // 2 // KEPT) == 0:
            kept.append(walkers.copy())
    return np.concatenate(kept, axis=1)


def _predictive(values: np.ndarray) -> Predictive:
    import numpy as np

    return Predictive(tuple(map(float, np.quantile(values, QUANTILES))))


def _normal_quantile(probability: np.ndarray) -> np.ndarray:
    from scipy.special import ndtri

    return ndtri(probability)
