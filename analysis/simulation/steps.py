"""Many synchronous steps on many GPUs, event by event: gradients become ready, are summed in buckets, the step ends.

Each GPU computes for a time of its own. The gradients of a bucket are summed when every GPU has made them and the
bucket before it is done; the step ends when the last bucket is summed, for all GPUs at once. What is drawn at random
is how long each GPU computes, in each step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from analysis.scaling.communication import expected_maximum

# Numbers drawn at once: 10,000 GPUs and 1,000 steps are 10^7, and need no more memory than this many do.
DRAWN_AT_ONCE = 2_000_000


@dataclass(frozen=True)
class Compute:
    """How long a GPU computes in a step.

    seconds: on average. deviations: of single steps, relative to that, as measured: drawn from with replacement; its
    mean is taken out. none: always the same. speed_deviation: standard deviation, relative, of how fast whole GPUs are:
    normal, and the same in all steps. late_probability, late_seconds: a GPU comes so much later in so many of its
    steps. forward: the part of the time in which no gradient is made yet.
    """

    seconds: float
    deviations: Sequence[float] = ()
    speed_deviation: float = 0.0
    late_probability: float = 0.0
    late_seconds: float = 0.0
    forward: float = 1 / 3

    @property
    def step_deviation(self) -> float:
        """Standard deviation, relative, of a GPU's steps."""
        return float(np.std(self.deviations)) if len(self.deviations) else 0.0


@dataclass(frozen=True)
class Steps:
    """seconds: of each step [steps]. compute, slowest: of each step, seconds that the GPUs computed: the mean over
    them, and the most (late ones included). What is between `slowest` and `seconds` is communication that nothing hid.
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
        """Seconds per step in which the GPUs waited for the slowest one."""
        return float((self.slowest - self.compute).mean())

    @property
    def exposed(self) -> float:
        """Seconds per step of communication that computing did not hide."""
        return float((self.seconds - self.slowest).mean())


def simulate_steps(
    compute: Compute, buckets: Sequence[float], gpus: int, steps: int, overlap: bool, rng: np.random.Generator
) -> Steps:
    """buckets: seconds that the sum of each takes on so many GPUs, in the order in which backward fills them; backward
    fills each in the same part of its time. overlap: whether the sums begin while backward goes on."""
    seconds, mean, slowest = np.empty(steps), np.empty(steps), np.empty(steps)
    speeds = 1 + compute.speed_deviation * rng.standard_normal(gpus)
    deviations = np.asarray(compute.deviations, dtype=float)
    deviations = deviations - deviations.mean() if len(deviations) else np.zeros(1)
    at_once = max(1, DRAWN_AT_ONCE // gpus)
    for first in range(0, steps, at_once):
        n = min(at_once, steps - first)
        drawn = deviations[rng.integers(len(deviations), size=(n, gpus))]
        computing = compute.seconds * np.maximum(speeds * (1 + drawn), 0.0)
        late = np.zeros((n, gpus))
        if compute.late_probability:
            late[rng.random((n, gpus)) < compute.late_probability] = compute.late_seconds
        part = slice(first, first + n)
        mean[part] = (computing + late).mean(axis=1)
        slowest[part] = (computing + late).max(axis=1)
        seconds[part] = _ends(computing, late, compute.forward if overlap else 1.0, buckets)
    return Steps(gpus, seconds, mean, slowest)


def _ends(computing: np.ndarray, late: np.ndarray, forward: float, buckets: Sequence[float]) -> np.ndarray:
    """When the steps end [n], from [n, gpus]: the last GPU to be ready, and the bucket before, let a bucket begin."""
    end = np.zeros(len(computing))
    for number, cost in enumerate(buckets, start=1):
        done = forward + (1 - forward) * number / len(buckets)
        ready = (late + done * computing).max(axis=1)
        end = np.maximum(end, ready) + cost
    return np.maximum(end, (late + computing).max(axis=1))


def closed_form(compute: Compute, buckets: Sequence[float], gpus: int, overlap: bool) -> float:
    """Seconds of a step, without drawing anything: the expected maximum of the GPUs' times, as if those were normal,
    and the buckets behind one another on a GPU that takes just so long.

    It holds where deviations are normal, and where one GPU being late moves all buckets alike. It knows no late GPUs.
    """
    deviation = math.hypot(compute.step_deviation, compute.speed_deviation)
    slowest = compute.seconds * (1 + deviation * expected_maximum(gpus))
    one = np.array([[slowest]])
    return float(_ends(one, np.zeros((1, 1)), compute.forward if overlap else 1.0, buckets)[0])
