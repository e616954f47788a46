"""When a run's mean step time is known: its error from correlated blocks, and the rule that stops on it."""

from __future__ import annotations

import math
import random

import pytest
import scipy  # loads scipy.stats on first use

from benchmarks.protocol import simulated
from harness.core.measuring.precision import FEWEST_TO_STOP, batch_means, is_known, mean_error, t_critical


def test_critical_values_are_those_of_students_t() -> None:
    for df, within in ((1, 0.12), (2, 0.01), (3, 0.002), (5, 2e-4), (30.5, 1e-5)):
        assert t_critical(df) == pytest.approx(scipy.stats.t.ppf(0.975, df), rel=within)


def test_batch_means_are_the_moving_block_bootstrap_in_closed_form() -> None:
    """15,000 resampled runs of n // length stretches; the closed form has n / length of them, and its correction."""
    draw, n, length = random.Random(5), 24, 5
    seconds = [draw.gammavariate(20, 0.05) for _ in range(n)]
    samples = [float(draw.randint(90, 110)) for _ in range(n)]
    ratio = sum(seconds) / sum(samples)
    costs = []
    for _ in range(15_000):
        places = [draw.randrange(n - length + 1) for _ in range(n // length)]
        drawn = [start + i for start in places for i in range(length)]
        costs.append(sum(seconds[i] for i in drawn) / sum(samples[i] for i in drawn) / ratio)
    mean = sum(costs) / len(costs)
    spread = math.sqrt(sum((cost - mean) ** 2 for cost in costs) / len(costs))
    expected = spread * math.sqrt((n // length) * length / n * n / (n - length))
    residuals = [a / sum(seconds) - b / sum(samples) for a, b in zip(seconds, samples, strict=True)]
    assert batch_means(residuals, 1.0).relative_se == pytest.approx(expected, rel=0.03)
    assert batch_means(residuals, 1.0).df == n / length - 1


def test_independent_blocks_have_the_error_of_a_mean_or_more() -> None:
    draw = random.Random(1)
    error = mean_error([draw.gauss(1, 0.03) for _ in range(400)])
    assert error is not None
    assert 0.03 / 20 < error.relative_se < 0.03 / 20 * 1.4
    assert 300 < error.times <= 400


def test_a_wandering_series_is_worth_few_independent_blocks() -> None:
    error = mean_error([1 + 0.1 * math.sin(i / 15) for i in range(100)])
    assert error is not None
    assert error.wanders
    assert error.times == 3


def test_no_error_from_too_few_blocks_or_of_nothing() -> None:
    assert mean_error([1.0] * 5) is None
    assert mean_error([]) is None
    assert mean_error([1.0] * 8, [0.0] * 8) is None  # servers that lost every update
    equal = mean_error([1.0] * 16)
    assert equal is not None
    assert (equal.relative_se, equal.times) == (0.0, 16.0)


def test_it_looks_only_at_growing_lengths_and_at_the_limit() -> None:
    looks = [n for n in range(1, 100) if is_known([1.0] * n, 0.02, last=False)]
    assert looks == [16, 24, 36, 54, 81]
    assert is_known([1.0] * 20, 0.02, last=True)
    assert not is_known([1.0] * (FEWEST_TO_STOP - 1), 0.02, last=True)


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.5, 0.7])
def test_the_interval_at_which_a_run_stops_holds_the_mean(correlation: float) -> None:
    """At least 90 % of simulated runs at ± 2 %, those that end at the limit included.

    With 4,000 runs (benchmarks/RESULTS.md, "protocol") it was 98, 96, 95 and 94 %. Of 300 runs, fewer than 0.85 hold in
    1 of 300 cases if the share is 90 %, and in 1 of 10^8 if it is 94 %.
    """
    runs = simulated(correlation, 300, seed=3)
    assert sum(run.holds for run in runs) / len(runs) >= 0.85
