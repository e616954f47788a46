"""Intervals and tests, compared with SciPy and hand calculations, and their empirical coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy  # loads scipy.stats on first use

from analysis.stats.estimates import Estimate, holm, of_one_run, of_runs, rate_ratio, t_critical
from analysis.stats.intervals import Interval
from analysis.stats.stability import trend
from analysis.tables.bases import ONE_RUN, basis_text
from harness.core.measuring.precision import mean_error

RUNS = [1.02, 0.97, 1.05, 1.01]


def test_interval_of_runs_is_students_on_the_scale_of_logarithms() -> None:
    interval = of_runs(RUNS).interval()
    _, low, high, *_ = interval
    mean, standard_error = np.mean(RUNS), scipy.stats.sem(RUNS)
    # SciPy's interval of the mean has the same half-width, relative to the mean, as ours on the log scale.
    reach = (scipy.stats.t.interval(0.95, 3, loc=mean, scale=standard_error)[1] - mean) / mean
    assert (low, high) == pytest.approx((mean * math.exp(-reach), mean * math.exp(reach)))
    assert basis_text(interval) == "4 runs"
    rates = of_runs(RUNS).rate_interval()
    assert (rates.low, rates.high) == pytest.approx((1 / high, 1 / low))


def test_ratio_agrees_with_welchs_test_on_logarithms() -> None:
    slower = [1.12, 1.06, 1.09]
    found = rate_ratio(of_runs(RUNS), of_runs(slower))
    theirs = scipy.stats.ttest_ind(np.log(slower), np.log(RUNS), equal_var=False)
    assert found.df == pytest.approx(theirs.df, rel=0.03)  # relative errors equal those of logarithms to first order
    assert found.p_value() == pytest.approx(theirs.pvalue, rel=0.1)
    interval = found.interval()
    assert interval.ends == pytest.approx(np.exp(theirs.confidence_interval(0.95)), rel=0.005)
    assert basis_text(interval) == "4 runs and 3 runs"


@pytest.mark.parametrize("far", [1.0, 1.05, 1.1, 1.2])
def test_interval_of_a_ratio_excludes_1_exactly_if_the_test_is_significant(far: float) -> None:
    found = rate_ratio(of_runs(RUNS), of_runs([far * cost for cost in (1.0, 1.04, 0.99)]))
    _, low, high, *_ = found.interval()
    assert low is not None
    assert high is not None
    assert (not low <= 1 <= high) == (found.p_value() < 0.05)


def test_quantile_and_probability_are_scipys() -> None:
    for df in (1.0, 1.7, 4.0, 31.5):
        assert t_critical(df, 0.95) == pytest.approx(scipy.stats.t.ppf(0.975, df))
    found = rate_ratio(Estimate(1.0, 0.03, 4, 5), Estimate(1.1, 0.04, 4, 5))
    df = (0.03**2 + 0.04**2) ** 2 / (0.03**4 / 4 + 0.04**4 / 4)
    assert found.p_value() == pytest.approx(2 * scipy.stats.t.sf(math.log(1.1) / 0.05, df))


def test_holms_correction() -> None:
    # Holm 1979, by hand: 0.01 x 4, 0.02 x 3, 0.03 x 2; then never below one before it.
    assert holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_a_difference_called_visible_is_seen_as_often_as_said() -> None:
    rng = np.random.default_rng(3)
    n, cv, studies = 5, 0.05, 1500
    visible = rate_ratio(*[Estimate(1.0, cv / math.sqrt(n), n - 1, n)] * 2).min_detectable_ratio(0.05)
    seen = 0
    for _ in range(studies):
        fast, slow = rng.normal(1, cv, n), visible * rng.normal(1, cv, n)
        seen += rate_ratio(of_runs(fast.tolist()), of_runs(slow.tolist())).p_value() < 0.05
    assert seen / studies == pytest.approx(0.8, abs=0.05)  # 3 standard errors of 1,500 studies are 0.03


# Coverage of 95 % intervals. 4,000 studies: a standard error of 0.0035. Measured with 20,000 and normal, lognormal and
# gamma distributions: 0.944 to 0.953 for a mean, 0.934 to 0.955 for a ratio to 5 runs.
STUDIES = 4000


@pytest.mark.parametrize("cv", [0.01, 0.05, 0.2])
@pytest.mark.parametrize("n", [3, 5, 10])
def test_coverage_of_intervals_from_runs(n: int, cv: float) -> None:
    rng = np.random.default_rng(n)
    sigma = math.sqrt(math.log(1 + cv**2))
    held = ratio_held = 0
    for own, base in zip(
        rng.lognormal(-(sigma**2) / 2, sigma, (STUDIES, n)).tolist(),
        rng.normal(2, cv, (STUDIES, 5)).tolist(),
        strict=True,
    ):
        mean, reference = of_runs(own), of_runs(base)
        held += _holds(mean.interval(), 1.0)
        ratio_held += _holds(rate_ratio(mean, reference).interval(), 2.0)
    assert 0.935 <= held / STUDIES <= 0.965
    assert 0.925 <= ratio_held / STUDIES <= 0.97


def test_coverage_of_a_ratio_of_two_runs_is_on_the_safe_side() -> None:
    rng = np.random.default_rng(2)
    pairs = zip(rng.normal(1, 0.05, (STUDIES, 2)).tolist(), rng.normal(2, 0.05, (STUDIES, 5)).tolist(), strict=True)
    held = sum(_holds(rate_ratio(of_runs(own), of_runs(base)).interval(), 2.0) for own, base in pairs)
    assert held / STUDIES >= 0.94  # with Welch-Satterthwaite degrees of freedom it was 0.90


# Blocks of an autocorrelated run (first order), measured with 6,000 runs for n = 10, 20, 50.
@pytest.mark.parametrize(
    ("correlation", "n", "least"), [(0.0, 6, 0.97), (0.0, 20, 0.96), (0.3, 20, 0.94), (0.6, 20, 0.90), (0.6, 50, 0.91)]
)
def test_coverage_of_intervals_from_the_blocks_of_one_run(correlation: float, n: int, least: float) -> None:
    rng = np.random.default_rng(n)
    runs, settle = 2000, 50
    noise = rng.normal(size=(runs, settle + n)) * math.sqrt(1 - correlation**2)
    blocks = np.zeros_like(noise)
    for i in range(1, settle + n):
        blocks[:, i] = correlation * blocks[:, i - 1] + noise[:, i]
    held = 0
    for seconds in (1 + 0.05 * blocks[:, settle:]).tolist():
        error = mean_error(seconds)
        assert error is not None
        held += _holds(of_one_run(sum(seconds) / n, error.relative_se, error.df, n).interval(), 1.0)
    assert held / runs >= least


def test_missing_interval_has_a_reason() -> None:
    alike = of_runs([0.1, 0.1, 0.1])
    assert alike.interval().ends == (None, None)
    assert basis_text(alike.interval()) == "no interval: the 3 runs are alike to the last digit"
    few = of_one_run(1.0, None, None, 5)
    assert few.rate_interval().ends == (None, None)
    assert basis_text(few.rate_interval()) == "no interval: 5 blocks of one run, 6 are needed"
    ratio = rate_ratio(of_runs(RUNS), few).interval()
    assert (*ratio.ends, basis_text(ratio)) == (None, None, basis_text(few.interval()))
    both = "no interval: 5 blocks of one run, 6 are needed; the 3 runs are alike to the last digit"
    assert basis_text(rate_ratio(few, alike).interval()) == both


def test_hostile_runs_have_finite_and_positive_intervals() -> None:
    for costs in ([1.0, 1e12], [1e-12, 1e12], [1.0, 1.0 + 1e-6]):
        _, low, high, *_ = of_runs(costs).interval()
        assert low is not None
        assert high is not None
        assert 0 < low < of_runs(costs).mean < high < math.inf
    found = rate_ratio(of_runs([1.0, 1e12]), of_runs([1e-12, 1.0]))
    assert found.min_detectable_ratio(1e-9) == math.inf
    assert 0 <= found.p_value() <= 1


def test_interval_of_one_run_is_labelled_so() -> None:
    single = of_one_run(1.0, 0.01, 3.0, 20)
    assert basis_text(single.interval()) == ONE_RUN
    assert basis_text(rate_ratio(single, single).interval()) == ONE_RUN
    assert basis_text(rate_ratio(of_runs(RUNS), single).interval()) == f"4 runs and {ONE_RUN}"
    assert basis_text(rate_ratio(of_runs(RUNS), of_runs(RUNS)).interval()) == "4 runs each"


def _holds(interval: Interval, value: float) -> bool:
    _, low, high, *_ = interval
    assert low is not None
    assert high is not None
    return low <= value <= high


def test_speedups_on_one_baseline_hold_together_less_often_than_each_alone() -> None:
    """The shares of docs/method.md, less and plus 4 standard errors of 600 series."""
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(600):
        base, *sizes = (of_runs(list(1 + 0.02 * rng.standard_normal(3))) for _ in range(4))
        held += all(not rate_ratio(size, base).interval().excludes(1.0) for size in sizes)
    assert 0.86 < held / 600 < 0.96


def test_few_blocks_hardly_ever_show_drift() -> None:
    """A rise of 5 % over 8 blocks that vary by 3 %: docs/method.md says 2 to 6 % for 6 to 10 blocks."""
    rng = np.random.default_rng(0)
    rise, blocks = 0.05 * np.linspace(0, 1, 8), [float(i) for i in range(8)]
    found = [trend(blocks, list(1 + rise + 0.03 * rng.standard_normal(8))) for _ in range(300)]
    assert 0 < sum(each is not None and each.is_drift for each in found) < 0.08 * 300
