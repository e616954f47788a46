"""Prediction error of the Bayesian scaling model on published measurements, compared with a ring term, linear, flat
and Extra-P.

A value is the error |predicted / measured - 1| at a series's largest size, predicted from all sizes up to half of it
(benchmarks/published/throughput.csv); ratios compare means over the series. The constants of
analysis/scaling/bayesian.py were chosen on these series, so its prior medians are also refitted without the predicted
series, and without its system (all series of a machine), by maximum evidence of the other series, each estimated as the
mean likelihood of 4,096 draws from the prior. Extra-P runs if the environment variable EXTRAP_PYTHON names a Python
that has it. Results are deterministic: n counts series. Results are in RESULTS.md.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence

import numpy as np
from scipy.optimize import minimize
from scipy.special import logsumexp, ndtri
from scipy.stats import qmc

from analysis.scaling.backtest import Fold, SeriesBacktest, all_folds, coverage, try_series
from analysis.scaling.baselines import EXTRA_P, FLAT, LINEAR, RING
from analysis.scaling.bayesian import (
    GROWTH_MEDIAN,
    LOSS_LOG_SD,
    NOISE_LOG_SD,
    NOISE_MEDIAN,
    RING_MEDIAN,
    Prior,
    posteriors,
    terms,
)
from analysis.scaling.extra_p import with_extrap
from analysis.scaling.measurements import read_table
from analysis.scaling.series import RateSeries
from benchmarks.common import ROOT, Row

PUBLISHED = ROOT / "benchmarks" / "published" / "throughput.csv"
DRAWS = ndtri(qmc.Sobol(5, seed=1).random(2**12).clip(1e-9, 1 - 1e-9))
CONSTANTS = np.log([RING_MEDIAN, GROWTH_MEDIAN, NOISE_MEDIAN])


def rows() -> list[Row]:
    tests = [try_series(series) for series in read_table(PUBLISHED).series]
    extrap = os.environ.get("EXTRAP_PYTHON")
    tests, _ = with_extrap(tests, extrap)
    nodes = [test for test in tests if test.series.largest.nodes > 1]
    found = []
    for what, chosen in (("series of 4 nodes", nodes), ("all series", tests)):
        for peer in (RING, FLAT, LINEAR, *([EXTRA_P] if extrap else [])):
            target = "< 1, and the largest less than the peer's" if peer == RING else ""
            found.append(_beside(f"error of the largest size, {what}", chosen, peer, target))
    found.append(_held("90 % intervals hold, all series and each size from the others", all_folds(tests), "85 to 95 %"))
    one_node = [test.one_node for test in tests if test.one_node is not None]
    errors = [100 * fold.error for fold in one_node]
    found.append(Row("error from one node and a bandwidth", "%", errors, target="mean ≤ 8 %"))
    for what, key in (("series", lambda s: s.name), ("system", lambda s: s.system)):
        largest, folds = refitted([test.series for test in tests], key)
        ring = [100 * abs(_rate(test, RING) / _measured(test) - 1) for test in tests]
        errors = [100 * fold.error for fold in largest]
        name = f"error of the largest size, medians of the prior fitted without its {what}"
        found.append(Row(name, "%", errors, RING, ring, sum(errors) / sum(ring)))
        found.append(
            _held(f"… 90 % intervals hold, medians of the prior fitted without the {what}", [*largest, *folds])
        )
    return found


def refitted(series: Sequence[RateSeries], key: Callable[[RateSeries], str]) -> tuple[list[Fold], list[Fold]]:
    """Return (largest sizes, each size from all others), with constants from the series of other keys."""
    largest: dict[int, Fold] = {}
    others: list[Fold] = []
    for held in dict.fromkeys(map(key, series)):
        prior = _prior(fit_constants([own for own in series if key(own) != held]))
        for i, own in enumerate(series):
            if key(own) != held:
                continue
            count = len(own.sizes)
            kept = [own.up_to_half(), *([j != k for j in range(count)] for k in range(count))]
            found = posteriors(own, kept, prior)
            largest[i] = Fold(own.largest, own.rates[-1], found[0].predict(own.largest))
            pairs = zip(own.sizes, own.rates, found[1:], strict=True)
            others += [Fold(size, rate, each.predict(size)) for size, rate, each in pairs]
    return [largest[i] for i in sorted(largest)], others


def fit_constants(series: Sequence[RateSeries]) -> np.ndarray:
    """Fit the logarithms of CONSTANTS by maximum evidence, with a weak prior (one standard deviation is a factor of e)
    around the values in use."""

    def loss(constants: np.ndarray) -> float:
        pull = 0.5 * float(((constants - CONSTANTS) ** 2).sum())
        return pull - sum(_log_evidence(own, _prior(constants)) for own in series)

    simplex = np.vstack([CONSTANTS, CONSTANTS + 0.4 * np.eye(len(CONSTANTS))])
    options = {"initial_simplex": simplex, "xatol": 0.02, "fatol": 0.02, "maxiter": 100}
    return minimize(loss, CONSTANTS, method="Nelder-Mead", options=options).x


def _log_evidence(series: RateSeries, prior: Prior) -> float:
    draws = prior.mean + prior.sd * DRAWS
    differences = np.log(series.costs) - np.log1p(np.exp(draws[:, :-1]) @ terms(series.sizes, series.scaling))
    squares = ((differences - differences.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
    log_noise = draws[:, -1]
    likelihood = -(len(series.sizes) - 1) * log_noise - 0.5 * squares * np.exp(-2 * log_noise)
    return float(logsumexp(likelihood)) - math.log(len(draws))


def _prior(constants: np.ndarray) -> Prior:
    ring, growth, noise = constants
    return Prior(np.array([ring, growth, ring, growth, noise]), np.array([LOSS_LOG_SD] * 4 + [NOISE_LOG_SD]))


def _beside(what: str, tests: Sequence[SeriesBacktest], peer: str, target: str) -> Row:
    both = [(test.largest, test.peers[peer]) for test in tests]
    ours = [100 * fold.error for fold, rate in both if fold is not None and rate is not None]
    theirs = [100 * abs(rate / fold.measured - 1) for fold, rate in both if fold is not None and rate is not None]
    return Row(what, "%", ours, peer, theirs, sum(ours) / sum(theirs), target)


def _held(what: str, folds: Sequence[Fold], target: str = "") -> Row:
    shares = coverage(folds)
    assert shares is not None
    return Row(f"{what}, of {len(folds)}", "%", [100 * shares[1]], target=target)


def _rate(test: SeriesBacktest, peer: str) -> float:
    rate = test.peers[peer]
    assert rate is not None
    return rate


def _measured(test: SeriesBacktest) -> float:
    assert test.largest is not None
    return test.largest.measured
