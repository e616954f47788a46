"""A GPU's own noise, found from means of a few steps and drawn again, compared with noise that was set."""

from __future__ import annotations

import math

import numpy as np
import pytest

from analysis.simulation.noise import Noise, noise_of
from harness.worker.emulated_noise import seconds_with_noise

# As by default: rounds of the probes, steps of each, and about as many steps from one round to the next.
ROUNDS, STEPS, APART = 20, 5, 24
MEASURED, LARGE = 16, 64  # ranks
SECONDS = 0.1


@pytest.mark.parametrize(
    "options",
    [
        {"jitter": 0.1},
        {"jitter": 0.05, "common_jitter": 0.2},
        {"jitter": 0.02, "late_probability": 0.03, "late_ms": 30.0},
    ],
    ids=["independent", "common", "heavy-tailed"],
)
def test_the_slowest_of_64_follows_from_16(options: dict[str, float]) -> None:
    def seconds(rank: int, step: int) -> float:
        return seconds_with_noise(SECONDS, options, 0, rank, step)

    rounds = [
        [np.mean([seconds(rank, number * APART + i) for i in range(STEPS)]) for rank in range(MEASURED)]
        for number in range(ROUNDS)
    ]
    found = noise_of([np.array(rounds)], STEPS).draw((2000, LARGE), np.random.default_rng(0))
    truth = np.array([[seconds(rank, step) for rank in range(LARGE)] for step in range(1000, 1300)])
    # Relative to the mean, which common noise moves from one time to another.
    assert 1 + found.max(axis=1).mean() == pytest.approx(truth.max(axis=1).mean() / truth.mean(), rel=0.05)


def test_drawn_noise_has_the_given_moments() -> None:
    for skewness, kurtosis in ((0.0, 0.0), (0.0, 6.0), (2.0, 9.0), (-1.0, 4.0)):
        drawn = Noise(0.1, skewness, kurtosis).draw((4000, 250), np.random.default_rng(0))
        assert drawn.mean() == pytest.approx(0, abs=5e-4)
        assert drawn.std() == pytest.approx(0.1, rel=0.01)
        standard = drawn / drawn.std()
        assert (standard**3).mean() == pytest.approx(skewness, abs=0.1)
        assert (standard**4).mean() - 3 == pytest.approx(kurtosis, abs=0.5)


def test_noise_that_lasts_over_rounds_is_as_large_in_a_mean_as_in_a_step() -> None:
    rng, keeps = np.random.default_rng(0), 0.9
    noise = [0.1 * rng.standard_normal(MEASURED)]
    for _ in range(200):
        noise.append(keeps * noise[-1] + 0.1 * math.sqrt(1 - keeps**2) * rng.standard_normal(MEASURED))
    found = noise_of([1 + np.array(noise)], STEPS)
    assert found.autocorrelation == pytest.approx(keeps, abs=0.1)
    # Independent steps would have sqrt(5) times the deviation of their mean.
    assert math.hypot(found.step, found.speed) == pytest.approx(0.1, rel=0.35)


def test_a_rank_that_is_always_slow_differs_in_speed() -> None:
    rng = np.random.default_rng(0)
    speeds = np.array([0.15, -0.05, -0.05, -0.05])
    found = noise_of([1 + speeds + 0.001 * rng.standard_normal((ROUNDS, 4))], STEPS)
    assert found.speed == pytest.approx(0.1, rel=0.02)
    assert found.speeds[0] == pytest.approx(speeds, abs=2e-3)
    # The measured GPUs again are those that were measured.
    assert found.draw((10, 4), rng).max(axis=1) == pytest.approx(0.15, abs=0.02)
    assert noise_of([np.ones((ROUNDS, 4))], STEPS).draw((2, 4), rng) == pytest.approx(0.0)
