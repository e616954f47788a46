"""Event simulation of synchronous steps on many GPUs.

Each GPU's compute time is drawn at random for each step. The allreduce of a bucket of gradients starts when every GPU
has computed them and the previous bucket is done. A step ends, for all GPUs at once, with its last bucket.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from analysis.scaling.communication import expected_maximum
from analysis.simulation.noise import NO_NOISE, Noise

# Limits memory: 10,000 GPUs and 1,000 steps need 10^7 random numbers.
DRAWN_AT_ONCE = 2_000_000


@dataclass(frozen=True)
class Compute:
    """Compute time of a GPU in a step.

    Attributes:
        seconds: mean.
        noise: deviations from it.
        late_probability, late_seconds: probability that a GPU is late in a step, and its delay.
        forward: share of the time before the first gradient is available.
    """

    seconds: float
    noise: Noise = NO_NOISE
    late_probability: float = 0.0
    late_seconds: float = 0.0
    forward: float = 1 / 3


@dataclass(frozen=True)
class Steps:
    """Simulated steps. Communication that is not hidden is `seconds` minus `slowest`.

    Attributes:
        seconds: duration of each step [steps].
        compute: mean compute seconds over the GPUs [steps].
        slowest: largest compute seconds of a GPU, including lateness [steps].
    """

    gpus: int
    seconds: np.ndarray = field(repr=False)
    compute: np.ndarray = field(repr=False)
    slowest: np.ndarray = field(repr=False)

    @property
    def mean(self) -> float:
        return float(self.seconds.mean())

    @property
    def imbalance(self) -> float:
        """Seconds per step that GPUs waited for the slowest one."""
        return float((self.slowest - self.compute).mean())

    @property
    def exposed(self) -> float:
        """Seconds per step of communication not hidden by computation."""
        return float((self.seconds - self.slowest).mean())


def simulate_steps(
    compute: Compute, buckets: Sequence[float], gpus: int, steps: int, overlap: bool, rng: np.random.Generator
) -> Steps:
    """Simulate steps.

    Args:
        compute: compute time of each GPU.
        buckets: allreduce seconds of each bucket, in backward order; backward fills them at equal intervals.
        gpus, steps: how many to simulate.
        overlap: whether allreduces start during the backward pass.
        rng: random number generator.
    """
    seconds, mean, slowest = np.empty(steps), np.empty(steps), np.empty(steps)
    at_once = max(1, DRAWN_AT_ONCE // gpus)
    for first in range(0, steps, at_once):
        n = min(at_once, steps - first)
        computing = compute.seconds * np.maximum(1 + compute.noise.draw((n, gpus), rng), 0.0)
        late = np.zeros((n, gpus))
        if compute.late_probability:
            late[rng.random((n, gpus)) < compute.late_probability] = compute.late_seconds
        part = slice(first, first + n)
        mean[part] = (computing + late).mean(axis=1)
        slowest[part] = (computing + late).max(axis=1)
        seconds[part] = _ends(computing, late, compute.forward if overlap else 1.0, buckets)
    return Steps(gpus, seconds, mean, slowest)


def _ends(computing: np.ndarray, late: np.ndarray, forward: float, buckets: Sequence[float]) -> np.ndarray:
    """Return when the steps end [n], from compute times [n, gpus]. A bucket waits for the last GPU and the previous
    bucket."""
    end = np.zeros(len(computing))
    for number, cost in enumerate(buckets, start=1):
        done = forward + (1 - forward) * number / len(buckets)
        ready = (late + done * computing).max(axis=1)
        end = np.maximum(end, ready) + cost
    return np.maximum(end, (late + computing).max(axis=1))


def closed_form(compute: Compute, buckets: Sequence[float], gpus: int, overlap: bool) -> float:
    """Return the seconds of a step by formula: the expected maximum of normal compute times, followed by the buckets.

    Valid if deviations are normal and a late GPU delays all buckets alike. Ignores late GPUs.
    """
    deviation = math.hypot(compute.noise.step, compute.noise.speed)
    slowest = compute.seconds * (1 + deviation * expected_maximum(gpus))
    one = np.array([[slowest]])
    return float(_ends(one, np.zeros((1, 1)), compute.forward if overlap else 1.0, buckets)[0])
