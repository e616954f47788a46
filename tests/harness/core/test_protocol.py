"""How many steps an attempt takes: the test that ends the warm-up, the rule that ends the timed steps, the limits."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import pytest

from harness.core.measuring.protocol import Protocol
from harness.core.measuring.steady_state import FAR, WINDOW, is_stationary, trend_p_value
from harness.core.spec import MeasureSpec

FIXED = MeasureSpec(warmup_steps=20, steps=40, block_steps=10)
ADAPTIVE = MeasureSpec(warmup_steps=20, steps=400, block_steps=10, warmup_limit_steps=100, precision=0.02)


def taken(protocol: Protocol, step_seconds: Iterator[float]) -> list[tuple[str, int, int]]:
    """Return the parts of all blocks as (phase, first step, steps) if each block takes the next of these times."""
    found = []
    while protocol.going:
        found += [tuple(part) for part in protocol.parts]
        protocol.add(next(step_seconds))
    return found


def noise(seed: int, spread: float, mean: float = 1.0) -> Iterator[float]:
    draw = random.Random(seed)
    return iter(lambda: draw.gauss(mean, spread), None)


def test_probabilities_of_a_trend_are_those_of_the_exact_table() -> None:
    """Kendall 1970, appendix, table 1, n = 6: P(S >= 15) = 0.0014, P(S >= 13) = 0.0083, P(S >= 11) = 0.028."""
    upper = [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 6, 5], [1, 2, 3, 5, 6, 4]
    assert [round(trend_p_value(values) / 2, 4) for values in upper] == [0.0014, 0.0083, 0.0278]
    assert trend_p_value([6, 5, 4, 3, 2, 1]) == trend_p_value([1, 2, 3, 4, 5, 6])
    orders = [trend_p_value(order) for order in itertools.permutations(range(4))]
    assert sum(p <= 0.1 for p in orders) == 2  # of 24 orders only the two monotonic ones


@pytest.mark.parametrize(
    ("series", "at_rest"),
    [
        ([1.0] * 6, True),
        ([1.0] * 5, False),  # too short
        ([3.0, 1.0, 1.01, 0.99, 1.0, 1.01], True),  # one late start
        ([2.0, 2.0, 2.0, 1.0, 1.0, 1.0], False),  # a step
        ([1.06, 1.05, 1.04, 1.03, 1.02, 1.01], False),  # 3 % between the halves, and falling
        ([1.03, 1.06, 1.04, 1.02, 1.05, 1.01], True),  # as far apart, and no trend
        ([1.005, 1.004, 1.003, 1.002, 1.001, 1.0], True),  # a trend too small to matter
        ([9.0] * 20 + [1.0] * 6, True),  # earlier values do not count
    ],
)
def test_a_known_series_is_at_rest_or_not(series: list[float], at_rest: bool) -> None:
    assert is_stationary(series) is at_rest


def test_noise_is_seldom_taken_for_a_trend_and_ends_the_warm_up_soon() -> None:
    """2,000 windows of pure noise, measured with this seed: 1.2 % are called non-stationary at 1 % noise, 29.6 % at
    5 %, mostly by FAR, which prolongs a warm-up by half a block on average. Bounds: four standard errors above."""
    alarms = {}
    for spread in (0.01, 0.05):
        series = noise(1, spread)
        alarms[spread] = sum(not is_stationary(list(itertools.islice(series, WINDOW))) for _ in range(2000)) / 2000
    assert alarms[0.01] < 0.022
    assert alarms[0.05] < 0.337


def test_a_warm_up_that_dies_away_is_waited_for() -> None:
    """Block times 1 + 2 exp(-i / 3) with 1 % noise: the remainder when the warm-up ends is less than FAR."""
    for seed in range(20):
        draw, series = noise(seed, 0.01), []
        while not is_stationary(series):
            series.append(next(draw) + 2 * 2.718281828 ** (-len(series) / 3))
        assert series[-1] < 1 + FAR
        assert len(series) > WINDOW


def test_fixed_numbers_of_steps_are_the_same_whatever_the_step_time() -> None:
    for series in (noise(1, 0.5, 10.0), itertools.repeat(1.0)):
        protocol = Protocol(FIXED, 0)
        assert taken(protocol, series) == [
            *[("first", 0, 1), ("warmup", 1, 9), ("warmup", 10, 10)],
            *[("measure", step, 10) for step in (20, 30, 40, 50)],
        ]
        outcome = protocol.outcome()
        assert (outcome["stopped"], outcome["warmup_steps"], outcome["measured_steps"]) == ("limit", 20, 40)
        assert (outcome["stationary"], outcome["precision"], outcome["relative_half_width"]) == (None, None, None)


def test_without_a_warm_up_the_first_step_is_in_no_figure_all_the_same() -> None:
    protocol = Protocol(MeasureSpec(warmup_steps=0, steps=4, block_steps=2), 0)
    assert taken(protocol, itertools.repeat(1.0)) == [("first", 0, 1), ("measure", 1, 1), ("measure", 2, 2)]
    assert protocol.outcome()["measured_steps"] == 3


@pytest.mark.parametrize(
    ("first_step", "phases"),
    [
        (10, [("first", 10, 1), ("warmup", 11, 9), ("rewarm", 20, 10), ("measure", 30, 10)]),
        (30, [("first", 30, 1), ("rewarm", 31, 9), ("rewarm", 40, 10), ("measure", 50, 10)]),
        (60, []),
    ],
)
def test_a_fixed_run_that_goes_on_keeps_its_blocks_and_its_end(first_step: int, phases: list[object]) -> None:
    protocol = Protocol(FIXED, first_step)
    found = taken(protocol, itertools.repeat(1.0))
    assert found[:4] == phases
    assert protocol.step == 60


def test_warm_up_goes_on_until_the_step_time_is_at_rest() -> None:
    starting: Sequence[float] = [5.0, 4.0, 3.0, 2.0]
    protocol = Protocol(ADAPTIVE, 0)
    found = taken(protocol, itertools.chain(starting, noise(3, 0.001)))
    warm = [part for part in found if part[0] != "measure"]
    # In the window 2, 1, 1, 1, 1, 1 both halves have median 1; in the one before, 3, 2, 1 and 1, 1, 1, they do not.
    assert sum(n for _, _, n in warm) == 90
    assert protocol.outcome()["stationary"] is True
    # Little noise: one of the first looks.
    assert protocol.outcome()["stopped"] == "precision"
    assert protocol.outcome()["measured_steps"] in (160, 240, 360)


def test_limits_end_nonstationary_runs_and_the_outcome_says_so() -> None:
    protocol = Protocol(ADAPTIVE, 0)
    found = taken(protocol, (1.1**i for i in itertools.count()))
    assert sum(n for phase, _, n in found if phase != "measure") == 100
    outcome = protocol.outcome()
    assert (outcome["stationary"], outcome["stopped"], outcome["measured_steps"]) == (False, "limit", 400)
    assert outcome["relative_half_width"] > 0.02
    assert protocol.step == ADAPTIVE.most_steps == 500


@pytest.mark.parametrize("first_step", [10, 150, 490, 500])
def test_an_adaptive_run_that_goes_on_warms_up_again_and_stays_within_its_limit(first_step: int) -> None:
    protocol = Protocol(ADAPTIVE, first_step)
    found = taken(protocol, noise(1, 0.5, 10.0))
    assert protocol.step <= 500
    assert [part[0] for part in found[:1]] == (["first"] if first_step < 500 else [])
    phases = [phase for phase, step, _ in found if step >= max(first_step + 1, 20)]
    assert phases == sorted(phases, reverse=True), "rewarm, then measure"
    assert sum(n for _, _, n in found) == protocol.step - first_step


def test_finished_training_does_not_continue() -> None:
    before = Protocol(ADAPTIVE, 0)
    taken(before, noise(3, 0.001))
    after = Protocol(ADAPTIVE, before.step, before.outcome())
    assert not after.going
    assert after.outcome() == before.outcome()
    assert Protocol(ADAPTIVE, before.step).going, "without that, it would"
