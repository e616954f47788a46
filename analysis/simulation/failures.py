"""A long run on failing nodes: checkpoint intervals by formula and by simulation.

mtbf is the mean time between failures of the whole job in seconds: a node's MTBF divided by the number of nodes. A
failure loses all work since the last checkpoint and costs a restart. Failures also occur during saving and restarting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Give up a run after this many failures: it would not finish.
MOST_FAILURES = 100_000


@dataclass(frozen=True)
class Reliability:
    """Failures and their cost.

    Attributes:
        mtbf: mean seconds between failures of the job.
        checkpoint, restart: seconds that each takes.
        shape: shape of the Weibull distribution of times between failures. 1: exponential; below 1: clustered, as
            observed on large machines (0.7 to 0.8: Schroeder and Gibson, DSN 2006).
    """

    mtbf: float
    checkpoint: float
    restart: float
    shape: float = 1.0


def young(machine: Reliability) -> float:
    """Return the checkpoint interval, in seconds of work (Young, CACM 17(9), 1974): sqrt(2 x checkpoint x MTBF)."""
    return math.sqrt(2 * machine.checkpoint * machine.mtbf)


def daly(machine: Reliability) -> float:
    """Return the checkpoint interval, in seconds of work, for exponential failures (Daly, FGCS 22(3), 2006,
    equation 37)."""
    if machine.checkpoint >= 2 * machine.mtbf:
        return machine.mtbf
    root = math.sqrt(machine.checkpoint / (2 * machine.mtbf))
    return young(machine) * (1 + root / 3 + root**2 / 9) - machine.checkpoint


def expected_seconds(work: float, interval: float, machine: Reliability) -> float:
    """Return the expected duration of a run for exponential failures (Daly 2006, equation 20).

    work, interval: seconds of work, in total and between checkpoints. Infinite if the run would not finish.
    """
    exponent = (interval + machine.checkpoint) / machine.mtbf
    if exponent > 700 or machine.restart / machine.mtbf > 700:
        return math.inf
    tries = math.expm1(exponent) * work / interval
    return machine.mtbf * math.exp(machine.restart / machine.mtbf) * tries


def simulate_run(work: float, interval: float, machine: Reliability, rng: np.random.Generator) -> float:
    """Return the seconds from the start of a run to its last checkpoint; infinite if it was given up.

    Event simulation: the next event is a checkpoint or a failure, whichever comes first.
    """
    now, saved, failures = 0.0, 0.0, 0
    next_failure = _between_failures(machine, rng)
    while saved < work:
        until = now + min(interval, work - saved) + machine.checkpoint
        if until <= next_failure:
            now, saved = until, min(saved + interval, work)
            continue
        while until > next_failure:  # further failures may occur during the restart
            until, failures = next_failure + machine.restart, failures + 1
            next_failure += _between_failures(machine, rng)
            if failures > MOST_FAILURES:
                return math.inf
        now = until
    return now


def simulated_seconds(
    work: float, intervals: Sequence[float], machine: Reliability, runs: int, seed: int
) -> list[np.ndarray]:
    """Simulate `runs` runs for each interval; return their seconds. All intervals see the same failures (paired
    comparison)."""
    return [
        np.array([simulate_run(work, interval, machine, np.random.default_rng([seed, run])) for run in range(runs)])
        for interval in intervals
    ]


def _between_failures(machine: Reliability, rng: np.random.Generator) -> float:
    return float(machine.mtbf / math.gamma(1 + 1 / machine.shape) * rng.weibull(machine.shape))
