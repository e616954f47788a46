"""Laws recover the parameters of simulated series, and their intervals have nominal coverage."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from analysis.scaling import bayesian, communication, textbook
from analysis.scaling.backtest import Fold, coverage
from analysis.scaling.bayesian import CONSTANTS, Kind, Predictive, Prior, posterior, posteriors, terms
from analysis.scaling.series import RateSeries, Size
from harness.core.spec import STRONG, WEAK

NODES_OF_8 = tuple(Size(gpus, max(1, gpus // 8)) for gpus in (1, 2, 4, 8, 16, 32, 64))
TRUE = {
    "linear": (),
    "amdahl": (0.01,),
    "gustafson": (0.1,),
    "usl": (0.01, 0.0005),
    "ring": (0.03, 0.05),
    "tree": (0.02, 0.04),
    "communication": (0.03, 0.05, 0.02),
}


def made(law: textbook.Law, values: tuple[float, ...], scaling: str = WEAK, cost: float = 0.0025) -> RateSeries:
    """Make a series without noise."""
    fit = textbook.Fit(law, scaling, cost, values, None, (True,) * len(values))
    return RateSeries("made", NODES_OF_8, tuple(fit.rate(size) for size in NODES_OF_8), scaling)


@pytest.mark.parametrize("scaling", [WEAK, STRONG])
@pytest.mark.parametrize("law", textbook.LAWS, ids=lambda law: law.name)
def test_fit_recovers_the_parameters(law: textbook.Law, scaling: str) -> None:
    fitted = textbook.fit(law, made(law, TRUE[law.name], scaling))
    assert fitted is not None
    assert fitted.values == pytest.approx(TRUE[law.name], rel=1e-3)
    assert fitted.cost == pytest.approx(0.0025, rel=1e-3)
    assert fitted.intervals is not None
    assert all(
        low <= true + 1e-6 and true - 1e-6 <= high
        for (low, high), true in zip(fitted.intervals, TRUE[law.name], strict=True)
    )


def test_the_law_that_made_a_series_has_its_smallest_leave_one_out_error() -> None:
    for name in ("amdahl", "ring", "tree"):
        law = next(law for law in textbook.LAWS if law.name == name)
        series = made(law, TRUE[name])
        error = textbook.leave_one_out(law, series)
        assert error is not None
        assert error < 1e-4
        assert all(error <= (textbook.leave_one_out(other, series) or 0) + 1e-4 for other in textbook.LAWS)


def test_undetermined_parameters_are_unknown() -> None:
    ring = next(law for law in textbook.LAWS if law.name == "ring")
    fitted = textbook.fit(ring, RateSeries("one node", NODES_OF_8[:4], (400.0, 790.0, 1570.0, 3110.0)))
    assert fitted is not None
    assert fitted.known == (True, False)


def test_a_law_with_more_unknowns_than_sizes_is_not_fitted() -> None:
    usl = next(law for law in textbook.LAWS if law.name == "usl")
    assert textbook.fit(usl, RateSeries("short", NODES_OF_8[:2], (1.0, 1.9))) is None


def test_costs_of_an_allreduce() -> None:
    # 2(n-1)/n x bytes / bandwidth: 100 MB among 4 at 12.5 GB/s take 1.5 x 8 ms.
    assert communication.ring_seconds(4, 1e8, 12.5e9) == pytest.approx(0.012)
    assert communication.ring_seconds(4, 1e8, 12.5e9, 1e-3) == pytest.approx(0.018)
    assert communication.tree_seconds(4, 1e8, 12.5e9, 1e-3) == pytest.approx(0.016)
    assert communication.exposed_seconds(0.012, 0.02, overlap=0.5) == pytest.approx(0.002)
    assert communication.exposed_seconds(0.012, 0.02, overlap=1.0, last_bucket_seconds=0.001) == 0.001


def test_expected_maximum_is_that_of_normal_draws() -> None:
    draws = np.random.default_rng(1).standard_normal((20_000, 64))
    assert communication.expected_maximum(1) == pytest.approx(0, abs=1e-12)
    for n in (2, 8, 64):
        assert communication.expected_maximum(n) == pytest.approx(draws[:, :n].max(axis=1).mean(), abs=0.035)


def test_bayesian_law_follows_a_series_with_many_sizes() -> None:
    ring = next(law for law in textbook.LAWS if law.name == "ring")
    series = made(ring, (0.02, 0.06))
    predicted = posterior(series.only([True] * 6 + [False])).predict(NODES_OF_8[-1])
    assert predicted.median == pytest.approx(series.rates[-1], rel=0.02)
    assert predicted.central90.low < series.rates[-1] < predicted.central90.high
    assert list(predicted.quantiles) == sorted(predicted.quantiles)


def simulated(random: np.random.Generator, kind: Kind, count: int, scaling: str = WEAK) -> tuple[np.ndarray, ...]:
    """Draw log costs at NODES_OF_8 from a kind of losses, (count, sizes), and the noise that they are without."""
    shape = (count, len(kind.mean))
    scale = kind.scale[0] * np.exp(kind.scale[1] * random.standard_normal((count, 1)))
    factors = np.array(kind.mean) + np.array(kind.sd) * random.standard_normal(shape)
    losses = scale * factors @ terms(NODES_OF_8, kind, NODES_OF_8[0]).T
    noise = CONSTANTS.noise[0] * np.exp(CONSTANTS.noise[1] * random.standard_normal((count, 1)))
    return losses, noise


def series_of(log_costs: np.ndarray) -> RateSeries:
    sizes = NODES_OF_8[: len(log_costs)]
    costs = np.exp(log_costs)
    return RateSeries("made", sizes, tuple(float(size.gpus / cost) for size, cost in zip(sizes, costs, strict=True)))


# The usual losses alone, not calibrated: the other kinds are linearised, so no draws of theirs are exact.
USUAL = dataclasses.replace(CONSTANTS, host=dataclasses.replace(CONSTANTS.host, share=1e-9), weak=(1.0, 1.0))


def test_intervals_hold_as_often_as_they_say_on_simulated_series() -> None:
    """Series drawn from the prior; 120 largest sizes, each predicted from all up to half of it. The binomial 99 %
    ranges of coverage are 0.82 to 0.97 for 90 % intervals and 0.38 to 0.62 for 50 %."""
    random = np.random.default_rng(7)
    losses, noise = simulated(random, CONSTANTS.communication, 120)
    folds = []
    for row in (losses + noise * random.standard_normal(losses.shape))[:, :6]:
        series = series_of(row)
        (found,) = posteriors(series, [series.up_to_half()], Prior(constants=USUAL))
        folds.append(Fold(series.largest, series.rates[-1], found.predict(series.largest)))
    shares = coverage(folds)
    assert shares is not None
    assert 0.38 < shares[0].estimate < 0.62
    assert 0.82 < shares[1].estimate < 0.98


def test_quadrature_agrees_with_a_million_draws() -> None:
    """Draws from the prior, weighted by the likelihood of three sizes, are an independent way to the quantiles."""
    random = np.random.default_rng(3)
    measured = np.log([1.0, 1.02, 1.03])
    losses, noise = simulated(random, CONSTANTS.communication, 1_000_000)
    differences = measured - losses[:, :3]
    one_gpu = differences.mean(axis=1, keepdims=True)
    squares = ((differences - one_gpu) ** 2).sum(axis=1, keepdims=True)
    weight = (noise**-2 * np.exp(-0.5 * squares / noise**2))[:, 0]
    weight /= weight.sum()
    assert 1 / (weight**2).sum() > 10_000  # effective sample size
    (found,) = posteriors(series_of(measured), [[True] * 3], Prior(constants=USUAL))
    found.__dict__["widening"] = 1.0
    spread = noise[:, 0] * np.sqrt(1 + 1 / 3)
    drawn = one_gpu[:, 0] + losses[:, 3] + spread * random.standard_normal(len(spread))
    order = np.argsort(-drawn)
    below = np.cumsum(weight[order])
    rates = [8 / np.exp(drawn[order][np.searchsorted(below, q)]) for q in bayesian.QUANTILES]
    assert found.predict(NODES_OF_8[3]).quantiles == pytest.approx(rates, rel=0.01)


@pytest.mark.parametrize("scaling", [WEAK, STRONG])
def test_finer_quadrature_changes_no_quantile_by_one_per_cent(scaling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    series = dataclasses.replace(series_of(np.log([1.0, 1.05, 1.12, 1.3])), scaling=scaling)
    usual = posterior(series).predict(Size(32, 4))
    monkeypatch.setattr(bayesian, "SCALES", 4 * bayesian.SCALES)
    monkeypatch.setattr(bayesian, "NOISES", 4 * bayesian.NOISES)
    monkeypatch.setattr(bayesian, "LINKS", 4 * bayesian.LINKS)
    assert posterior(series).predict(Size(32, 4)).quantiles == pytest.approx(usual.quantiles, rel=0.01)


def test_an_interval_widens_if_the_law_missed_the_largest_size() -> None:
    held = posterior(series_of(np.log([1.0, 1.02, 1.03, 1.04])))
    missed = posterior(series_of(np.log([1.0, 1.02, 1.03, 2.0])))
    assert held.widening == 1
    assert missed.widening > 1
    narrow, wide = Predictive((8.0, 9.0, 10.0, 11.0, 12.5)), Predictive((6.4, 8.1, 10.0, 12.1, 15.625))
    assert narrow.stretched(2, 2).quantiles == pytest.approx(wide.quantiles)


def test_intervals_widen_with_distance_and_over_another_link_level() -> None:
    one_node = RateSeries("one node", NODES_OF_8[:4], (400.0, 790.0, 1570.0, 3110.0))
    two_nodes = RateSeries("two nodes", NODES_OF_8[:5], (400.0, 790.0, 1570.0, 3110.0, 6190.0))

    def width(series: RateSeries, size: Size) -> float:
        predicted = posterior(series).predict(size)
        return predicted.central90.high / predicted.central90.low - 1

    assert width(two_nodes, Size(32, 4)) < width(two_nodes, Size(64, 8)) < width(two_nodes, Size(512, 64))
    assert width(one_node, Size(32, 4)) > 5 * width(two_nodes, Size(32, 4))


def test_a_first_second_node_costs_what_is_usual_at_its_own_step() -> None:
    """The prior of the loss between two nodes, 5 %, is of the step at the largest measured size. As a share of the step
    of one GPU, 8 times as long, it made every strong-scaling series lose 65 % on its second node."""
    series = RateSeries("one node", (Size(1, 1), Size(8, 1)), (1.0, 8 / 1.2), scaling=STRONG)
    cost = 16 / posterior(series).predict(Size(16, 2)).median
    assert 1.05 < cost / 1.2 < 1.4


def test_the_same_series_gives_the_same_figures() -> None:
    series = RateSeries("again", NODES_OF_8[:4], (400.0, 790.0, 1570.0, 3110.0))
    assert posterior(series).predict(Size(16, 2)) == posterior(series).predict(Size(16, 2))
