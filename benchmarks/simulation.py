"""How well `python -m analysis simulate` knows the slowest of many GPUs from few: with noise that was set, as in
framework=emulated, so that the truth is known.

A study is ROUNDS rounds of STEPS steps without synchronisation on some ranks, each APART steps after the last, as the
probes of a run take them. From their noise, the slowest of LARGE ranks is drawn in 2,000 steps, relative to the mean of
all ranks; the truth is that of TRUE_STEPS steps of the set noise. Figures are absolute errors over STUDIES studies with
different seeds; nothing in the estimate was tuned on them. The peer, of the same studies, takes noise as normal: the
expected maximum of normal values (Blom 1958), as the closed form of `simulate` does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from analysis.scaling.communication import expected_maximum
from analysis.simulation.noise import noise_of
from benchmarks.common import Row, paired, share
from harness.worker.emulated_noise import seconds_with_noise

STUDIES, STEPS, APART, SECONDS = 100, 5, 24, 0.1
LARGE, TRUE_STEPS = 64, 2000
NOISES: Mapping[str, Mapping[str, float]] = {
    "independent, 10 %": {"jitter": 0.1},
    "common, 20 %, and independent, 5 %": {"jitter": 0.05, "common_jitter": 0.2},
    "3 % of the steps 30 % late": {"jitter": 0.02, "late_probability": 0.03, "late_ms": 30.0},
    "5 % of the steps 40 % late": {"jitter": 0.02, "late_probability": 0.05, "late_ms": 40.0},
}
# Ranks and rounds of a study. The default has 20 rounds.
SHAPES = ((4, 20), (16, 20), (16, 60))
WITHIN = 5.0  # per cent


def rows() -> list[Row]:
    result = []
    for name, options in NOISES.items():
        true = seconds(options, 0, LARGE, range(10**6, 10**6 + TRUE_STEPS))
        truth = float(true.max(axis=1).mean() / true.mean())
        for ranks, rounds in SHAPES:
            errors, normal = [], []
            for seed in range(1, STUDIES + 1):
                slowest, closed = found(options, seed, ranks, rounds)
                errors.append(100 * abs(slowest / truth - 1))
                normal.append(100 * abs(closed / truth - 1))
            what = f"slowest of {LARGE} ranks from {ranks}, {rounds} rounds; noise: {name}"
            result += [
                Row(f"{what}: error", "%", errors, target=f"≤ {WITHIN:g} %"),
                paired("… beside noise taken as normal", "%", errors, "normal noise", normal),
                share(f"… within {WITHIN:g} %", [error <= WITHIN for error in errors]),
            ]
    return result


def found(options: Mapping[str, float], seed: int, ranks: int, rounds: int) -> tuple[float, float]:
    """Return what one study says of the slowest of LARGE ranks, relative to the mean: drawn, and if noise is normal."""
    means = [
        seconds(options, seed, ranks, range(number * APART, number * APART + STEPS)).mean(axis=0)
        for number in range(rounds)
    ]
    noise = noise_of([np.array(means)], STEPS)
    drawn = 1 + noise.draw((2000, LARGE), np.random.default_rng(seed))
    deviation = math.hypot(noise.step, noise.speed)
    return float(drawn.max(axis=1).mean() / drawn.mean()), 1 + deviation * expected_maximum(LARGE)


def seconds(options: Mapping[str, float], seed: int, ranks: int, steps: range) -> np.ndarray:
    """Return what the ranks take [steps, ranks]."""
    every = {"jitter": 0.0, **options}
    return np.array([[seconds_with_noise(SECONDS, every, seed, rank, step) for rank in range(ranks)] for step in steps])
