"""A GPU's own noise: from the ranks' times without synchronisation to a distribution that can be drawn from.

In a round all ranks take `n` steps without synchronisation at the same time. What they share in a round (clock,
temperature, other load) is common mode: it makes no GPU wait for another. Own noise is by how much a rank's time
differs from the round's mean. The part that a rank keeps over all rounds is its speed. The rest is a mean of n steps;
the share of it that lasts from one round to the next, its autocorrelation, is as large in a step as in the mean, and
otherwise steps count as independent. So the cumulants of a step follow from those of the mean, and a normal inverse
Gaussian distribution (Barndorff-Nielsen, Scandinavian Journal of Statistics 24, 1997), whose tails may be much heavier
than normal ones, is fitted to them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# The distribution needs an excess kurtosis above 5/3 of the squared skewness, and above 0; as good as normal: 0.01.
LEAST_KURTOSIS, MARGIN = 0.01, 1.05


@dataclass(frozen=True)
class Noise:
    """Deviations relative to the mean compute time.

    Attributes:
        step: standard deviation of a GPU's step.
        skewness, kurtosis: of the same; excess kurtosis.
        speed: standard deviation of the speed between GPUs.
        speeds: of the measured ranks, one sequence per run.
        common: of each round, shared by all GPUs.
        autocorrelation: of a rank's deviation from one round to the next.
        observed: steps of a GPU that it is from.
    """

    step: float = 0.0
    skewness: float = 0.0
    kurtosis: float = 0.0
    speed: float = 0.0
    speeds: Sequence[Sequence[float]] = ()
    common: Sequence[float] = (0.0,)
    autocorrelation: float = 0.0
    observed: int = 0

    def draw(self, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
        """Draw the deviations of steps [n, gpus]: of each step, its common deviation and those of its GPUs."""
        n, gpus = shape
        if any(len(own) == gpus for own in self.speeds):
            known = np.array([own for own in self.speeds if len(own) == gpus])
            speeds = known[rng.integers(len(known), size=n)]
        else:  # each step is taken by other GPUs, so that means over the steps are expectations
            speeds = self.speed * rng.standard_normal(shape)
        common = np.asarray(self.common)[rng.integers(len(self.common), size=(n, 1))]
        return np.asarray((1 + common) * (1 + speeds + self._steps(shape, rng)) - 1)

    def _steps(self, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
        """Draw from the distribution as a normal one with a random mean and variance."""
        if not self.step:
            return np.zeros(shape)
        kurtosis = max(self.kurtosis, MARGIN * 5 / 3 * self.skewness**2, LEAST_KURTOSIS)
        # Of the standard parameters alpha, beta and delta: their ratio, and the products with delta.
        ratio = self.skewness / math.sqrt(3 * kurtosis - 4 * self.skewness**2)
        gamma = 3 / kurtosis * (1 + 4 * ratio**2)
        alpha = gamma / math.sqrt(1 - ratio**2)
        delta = self.step * math.sqrt(gamma**3) / alpha
        mixing = rng.wald(1 / gamma, 1.0, shape)
        centred = alpha * ratio * (mixing - 1 / gamma) + np.sqrt(mixing) * rng.standard_normal(shape)
        return np.asarray(delta * centred)


NO_NOISE = Noise()


def noise_of(runs: Sequence[np.ndarray], n: int) -> Noise:
    """Estimate the noise from the times of runs [rounds, ranks], of at least two each; each time is of n steps."""
    relative = [seconds / seconds.mean() for seconds in runs]
    rounds = [each.mean(axis=1) for each in relative]
    own = [each / mean[:, None] - 1 for each, mean in zip(relative, rounds, strict=True)]
    speeds = [each.mean(axis=0) for each in own]
    rest = [each - mean for each, mean in zip(own, speeds, strict=True)]
    # Weighted by the degrees of freedom.
    free = [(each.shape[0] - 1) * (each.shape[1] - 1) for each in rest]
    variance = sum(float((each**2).sum()) for each in rest) / sum(free)
    speed = sum(float((each**2).sum()) for each in speeds) / sum(len(each) - 1 for each in speeds)
    if not variance > 1e-20:  # rounding
        return Noise(0.0, speed=math.sqrt(speed), speeds=[tuple(each) for each in speeds], observed=_observed(runs, n))
    squares = sum(float((each**2).sum()) for each in rest)
    lagged = sum(float((each[1:] * each[:-1]).sum()) for each in rest) / squares
    count = len(rest[0])
    autocorrelation = min(1.0, max(0.0, lagged * count / (count - 1) + 1 / count))  # less the bias of removed means
    effective = autocorrelation + n * (1 - autocorrelation)
    skewness, kurtosis = _shape(rest)
    # Of a rank's mean over the rounds, what its steps alone would give.
    by_chance = variance / count * (1 + 2 * autocorrelation / max(1 - autocorrelation, 1 / count))
    kept = max(0.0, 1 - by_chance / speed) if speed else 0.0
    # The same for the round's means.
    shared = [mean - 1 for mean in rounds]
    spread = sum(float((each**2).sum()) for each in shared) / sum(len(each) - 1 for each in shared)
    drifting = math.sqrt(max(0.0, 1 - variance / relative[0].shape[1] / spread)) if spread else 0.0
    return Noise(
        step=math.sqrt(effective * variance),
        skewness=skewness * math.sqrt(effective),
        kurtosis=kurtosis * effective,
        speed=math.sqrt(kept * speed),
        speeds=[tuple(kept * each) for each in speeds],
        common=tuple(float(drifting * value) for each in shared for value in each),
        autocorrelation=autocorrelation,
        observed=_observed(runs, n),
    )


def _observed(runs: Sequence[np.ndarray], n: int) -> int:
    return sum(each.size for each in runs) * n


def _shape(rest: Sequence[np.ndarray]) -> tuple[float, float]:
    """Return skewness and excess kurtosis of a rank's deviations.

    Shrunk, to 0 within two standard errors (of normal values sqrt(6 / n) and sqrt(24 / n)). Corrected for the means
    that were subtracted: a residual is a weighted sum of independent values, whose cumulants add up.
    """
    values = np.concatenate([each.ravel() for each in rest])
    values = values / math.sqrt(float((values**2).mean()))
    found = float((values**3).mean()), float((values**4).mean()) - 3
    squared_errors = 6 / len(values), 24 / len(values)
    skewness, kurtosis = (each * max(0.0, 1 - 4 * by / each**2) for each, by in zip(found, squared_errors, strict=True))
    for count in rest[0].shape:
        second, third, fourth = ((1 - 1 / count) ** p + (count - 1) * (-1 / count) ** p for p in (2, 3, 4))
        skewness *= math.sqrt(second**3) / third if count > 2 else 0.0  # of two, the difference is symmetric
        kurtosis *= second**2 / fourth
    return skewness, kurtosis
