"""Simulated steps and runs, compared with closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from analysis.scaling.communication import expected_maximum
from analysis.simulation.failures import Reliability, daly, expected_seconds, simulated_seconds, young
from analysis.simulation.noise import Noise
from analysis.simulation.steps import Compute, closed_form, simulate_steps

DAY = 86_400.0


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize(
    ("buckets", "overlap", "expected"),
    [
        ((), True, 1.0),
        # Backward takes 2/3 s; half of the gradients are ready after 2/3 s, and their allreduce is hidden.
        ((0.1, 0.1), True, 1.1),
        # The second bucket waits for the first one.
        ((0.5, 0.1), True, 2 / 3 + 0.5 + 0.1),
        ((0.1, 0.1), False, 1.2),
    ],
)
def test_a_step_without_noise_is_what_a_timeline_on_paper_gives(
    buckets: tuple[float, ...], overlap: bool, expected: float
) -> None:
    steps = simulate_steps(Compute(1.0), buckets, 7, 5, overlap, rng())
    np.testing.assert_allclose(steps.seconds, expected)
    assert closed_form(Compute(1.0), buckets, 7, overlap) == pytest.approx(expected)
    assert steps.imbalance == pytest.approx(0)
    assert steps.exposed == pytest.approx(expected - 1)


@pytest.mark.parametrize("gpus", [1, 8, 64, 1024])
def test_it_agrees_with_the_closed_form_where_that_holds(gpus: int) -> None:
    compute = Compute(0.2, Noise(step=0.02))
    for buckets in ((0.001,) * 10, (0.02,) * 10):
        steps = simulate_steps(compute, buckets, gpus, 2_000, True, rng())
        # 0.1 %: sampling error, and error of Blom's approximation.
        assert steps.mean == pytest.approx(closed_form(compute, buckets, gpus, True), rel=1e-3)


def test_occasionally_late_gpus_deviate_from_the_closed_form() -> None:
    compute = Compute(1.0, late_probability=1e-3, late_seconds=0.5)
    for gpus in (10, 1_000):
        steps = simulate_steps(compute, (0.01,), gpus, 4_000, True, rng())
        any_late = 1 - (1 - 1e-3) ** gpus
        error = 0.5 * math.sqrt(any_late * (1 - any_late) / 4_000)
        assert steps.mean == pytest.approx(1.01 + 0.5 * any_late, abs=4 * error)
        assert closed_form(compute, (0.01,), gpus, True) == pytest.approx(1.01)


def test_the_expected_maximum_is_that_of_drawn_numbers() -> None:
    for n in (2, 10, 1_000):
        drawn = rng().standard_normal((4_000, n)).max(axis=1)
        # Blom's approximation is within 2 %; plus 4 standard errors of the draws.
        bound = 0.02 * drawn.mean() + 4 * drawn.std() / math.sqrt(len(drawn))
        assert expected_maximum(n) == pytest.approx(drawn.mean(), abs=bound)


MACHINE = Reliability(mtbf=6 * 3600, checkpoint=120, restart=300)


def test_failing_runs_match_daly_for_memoryless_failures() -> None:
    best = daly(MACHINE)
    intervals = [best * factor for factor in (0.25, 0.5, 1, 2, 4)]
    means = []
    for interval, seconds in zip(intervals, simulated_seconds(7 * DAY, intervals, MACHINE, 300, 0), strict=True):
        error = seconds.std() / math.sqrt(len(seconds))
        # The last interval is shorter than the others; tolerate one interval out of 7 days.
        assert seconds.mean() == pytest.approx(expected_seconds(7 * DAY, interval, MACHINE), abs=4 * error + interval)
        means.append(seconds.mean())
    assert min(means) == means[2], "neither a half nor twice of Daly's interval is better"


def test_without_failures_a_run_takes_its_work_and_its_checkpoints() -> None:
    [seconds] = simulated_seconds(1_000, [100], Reliability(1e15, 5, 60), 2, 0)
    np.testing.assert_allclose(seconds, 1_050)
    assert expected_seconds(1_000, 100, Reliability(1e12, 5, 60)) == pytest.approx(1_050, rel=1e-6)


def test_clustered_failures_deviate_from_the_closed_form() -> None:
    grouped = Reliability(MACHINE.mtbf, MACHINE.checkpoint, MACHINE.restart, shape=0.5)
    interval = daly(MACHINE)
    [seconds] = simulated_seconds(7 * DAY, [interval], grouped, 300, 0)
    error = seconds.std() / math.sqrt(len(seconds))
    assert abs(seconds.mean() - expected_seconds(7 * DAY, interval, MACHINE)) > 4 * error


def test_a_run_that_never_ends_is_given_up() -> None:
    hopeless = Reliability(mtbf=1, checkpoint=60, restart=60)
    [seconds] = simulated_seconds(DAY, [600], hopeless, 1, 0)
    assert math.isinf(seconds[0])
    assert math.isinf(expected_seconds(DAY, 600, Reliability(mtbf=0.5, checkpoint=60, restart=60)))


def test_young_and_daly_agree_where_saving_is_cheap() -> None:
    cheap = Reliability(mtbf=DAY, checkpoint=1, restart=0)
    assert daly(cheap) == pytest.approx(young(cheap), rel=0.01)
    assert daly(Reliability(mtbf=100, checkpoint=200, restart=0)) == 100
