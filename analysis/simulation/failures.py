"""A long run on nodes that fail: how often to save, by formula and by simulation.

mtbf: seconds between two failures of the whole job, on average: that of one node by their number. A failure loses all
work since the last checkpoint, and costs a restart. The clock of failures goes on while a job saves or restarts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Failures of one run after which it is given up: it will not come to its end.
MOST_FAILURES = 100_000


@dataclass(frozen=True)
class Reliability:
    """checkpoint, restart: seconds that each takes. shape: of the Weibull distribution of the times between failures;
    1: exponential, failures that do not remember; below 1, as failures on large machines are found to come (Schroeder
    and Gibson, DSN 2006: 0.7 to 0.8), they come in groups."""

    mtbf: float
    checkpoint: float
    restart: float
    shape: float = 1.0


def young(machine: Reliability) -> float:
    """Seconds of work between two checkpoints (Young, CACM 17(9), 1974): the square root of 2 x checkpoint x MTBF."""
    return math.sqrt(2 * machine.checkpoint * machine.mtbf)


def daly(machine: Reliability) -> float:
    """Seconds of work between two checkpoints (Daly, FGCS 22(3), 2006, equation 37), for exponential failures."""
    if machine.checkpoint >= 2 * machine.mtbf:
        return machine.mtbf
    root = math.sqrt(machine.checkpoint / (2 * machine.mtbf))
    return young(machine) * (1 + root / 3 + root**2 / 9) - machine.checkpoint


def expected_seconds(work: float, interval: float, machine: Reliability) -> float:
    """Of a run with so many seconds of work (Daly 2006, equation 20), for exponential failures; infinite where it
    would not end."""
    exponent = (interval + machine.checkpoint) / machine.mtbf
    if exponent > 700 or machine.restart / machine.mtbf > 700:
        return math.inf
    tries = math.expm1(exponent) * work / interval
    return machine.mtbf * math.exp(machine.restart / machine.mtbf) * tries


def simulate_run(work: float, interval: float, machine: Reliability, rng: np.random.Generator) -> float:
    """Seconds of one run from its begin to its last checkpoint; infinite where it was given up.

    A run is checkpoints and failures, and the next event is whichever comes first.
    """
    now, saved, failures = 0.0, 0.0, 0
    next_failure = _between_failures(machine, rng)
    while saved < work:
        until = now + min(interval, work - saved) + machine.checkpoint
        if until <= next_failure:
            now, saved = until, min(saved + interval, work)
            continue
        while until > next_failure:  # also one that comes before the job is back from the last one
            until, failures = next_failure + machine.restart, failures + 1
            next_failure += _between_failures(machine, rng)
            if failures > MOST_FAILURES:
                return math.inf
        now = until
    return now


def simulated_seconds(
    work: float, intervals: Sequence[float], machine: Reliability, runs: int, seed: int
) -> list[np.ndarray]:
    """Of so many runs for each interval. All intervals meet the same failures, so that they differ in nothing else."""
    return [
        np.array([simulate_run(work, interval, machine, np.random.default_rng([seed, run])) for run in range(runs)])
        for interval in intervals
    ]


def _between_failures(machine: Reliability, rng: np.random.Generator) -> float:
    return float(machine.mtbf / math.gamma(1 + 1 / machine.shape) * rng.weibull(machine.shape))
