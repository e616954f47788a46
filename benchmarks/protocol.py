"""How often the interval at which a run stops holds the true mean, and what stopping costs.

Simulated: blocks of an AR(1) process with a coefficient of variation of 3 %, ± 2 % wanted, at most the blocks of
conf/measure/default.yaml. The result of every run counts, of those that end at the limit too.

Recorded: replays the protocol (harness/core/measuring) on recorded step times (record.py; recorded/step_times.json
names networks, dates and the machine). It extends the warm-up until the step time is stationary and then takes blocks
until the mean is known to `precision`, or the recording ends. Here only runs that stop before count, and what has to be
held is the mean of the whole recording after the warm-up.

The peer of both is the rule of before: stop at the first block after which the interval of the median (order
statistics, as if blocks were independent) is narrow enough; what has to be held is the median.

A third peer uses one fixed number of blocks for all runs after the same warm-up: the smallest with which every run, or
half of the runs, is known as precisely. If there is none, it is the length of the longest recording. No run has more
blocks than its recording. Compared is the time of the timed steps. No clock is read.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean, median
from typing import Any, NamedTuple

from analysis.stats.rounds import FEWEST_ROUNDS, of_rounds
from benchmarks.common import Row, paired, share
from benchmarks.record import RECORDED
from harness.core.measuring.precision import is_known, mean_error
from harness.core.measuring.protocol import MEASURE, Protocol
from harness.core.spec import MeasureSpec

# The value of conf/measure/default.yaml, and values that noisier machines reach.
PRECISIONS = (0.02, 0.05, 0.1)
WARMUP_STEPS, WARMUP_LIMIT_STEPS, BLOCK_STEPS = 20, 200, 10
MOST_BLOCKS = 100
CORRELATIONS, SPREAD, RUNS, HELD = (0.0, 0.3, 0.5, 0.7, 0.9), 0.03, 4000, 0.7
OLD = "the median's interval, at every block"
ABOUT = """The rule of docs/method.md, and the one before it (the interval of the median, as if blocks were independent,
looked at after every block). Recorded on a quiet virtual machine whose successive blocks are correlated (rank
correlation 0.35, 0.11 to 0.82 over the runs)."""


class Stopped(NamedTuple):
    """taken: number of blocks. precise: whether it stopped before the limit. holds: its interval holds the truth."""

    taken: int
    precise: bool
    holds: bool


class Replayed(NamedTuple):
    """Outcome of the protocol on a recorded run.

    timed: seconds per step of all blocks after the warm-up, in order. taken: number of blocks used. precise: whether
    it stopped because the mean was known.
    """

    timed: tuple[float, ...]
    taken: int
    precise: bool

    def seconds(self, blocks: int, block_steps: int) -> float:
        return sum(self.timed[:blocks]) * block_steps


def rows() -> list[Row]:
    document = json.loads(RECORDED.read_text(encoding="utf-8"))
    return [
        *(row for correlation in CORRELATIONS for row in of_correlation(correlation)),
        *(row for precision in PRECISIONS for row in of_precision(document, precision)),
    ]


def of_correlation(correlation: float) -> list[Row]:
    ours, old = simulated(correlation, RUNS), simulated_old(correlation, RUNS)
    taken = [[float(BLOCK_STEPS * run.taken) for run in runs] for runs in (ours, old)]
    mean = [fmean(steps) for steps in taken]
    what, target = f"simulated, correlation {correlation}", "≥ 90 %" if correlation <= HELD else ""
    precise = [run.holds for run in ours if run.precise]
    return [
        share(f"{what}: interval holds the mean", [run.holds for run in ours], target),
        share("… of those that stopped before the limit", precise, target),
        share(f"… {OLD}", [run.holds for run in old]),
        Row("… mean timed steps", "steps", mean[:1], OLD, mean[1:], mean[0] / mean[1]),
    ]


def of_precision(document: dict[str, Any], precision: float) -> list[Row]:
    steps = document["block_steps"]
    runs = [replayed(run["seconds_per_step"], steps, precision) for run in document["runs"]]
    old = [stopped_old(run.timed, precision, median(run.timed)) for run in runs]
    taken = [[float(steps * run.taken) for run in runs], [float(steps * run.taken) for run in old]]
    what = f"recorded, ± {precision:.0%}"
    result = [
        share(f"{what}: interval holds the recording's mean", [holds(run) for run in runs if run.precise], "≥ 90 %"),
        share(f"… {OLD}", [run.holds for run in old if run.precise]),
        share("… runs that did not stop before the end of their recording", [not run.precise for run in runs]),
        paired("… timed steps", "steps", taken[0], OLD, taken[1]),
    ]
    ours = [run.seconds(run.taken, steps) for run in runs]
    for part, whom in ((1.0, "every run needs"), (0.5, "half of the runs need")):
        blocks = fixed_blocks(runs, precision, part)
        peer = [run.seconds(blocks, steps) for run in runs]
        result.append(paired(f"… time, beside as many steps as {whom}", "s", ours, f"{blocks * steps} steps", peer))
    return result


def simulated(correlation: float, runs: int, precision: float = PRECISIONS[0], seed: int = 1) -> list[Stopped]:
    """Runs of the protocol on AR(1) blocks whose mean is 1."""
    measure = MeasureSpec(warmup_steps=0, steps=MOST_BLOCKS, block_steps=1, precision=precision)
    draw, found = random.Random(seed), []
    for _ in range(runs):
        # The protocol leaves out the first step.
        blocks, protocol = autoregressive(draw, correlation), Protocol(measure, 1)
        while protocol.going:
            protocol.add(next(blocks))
        found.append(
            Stopped(len(protocol.timed), protocol.outcome()["stopped"] == "precision", _holds(protocol.timed, 1))
        )
    return found


def simulated_old(correlation: float, runs: int, precision: float = PRECISIONS[0], seed: int = 1) -> list[Stopped]:
    draw = random.Random(seed)
    series = (itertools.islice(autoregressive(draw, correlation), MOST_BLOCKS) for _ in range(runs))
    return [stopped_old(blocks, precision, 1.0) for blocks in series]


def autoregressive(draw: random.Random, correlation: float) -> Iterator[float]:
    value, innovation = draw.gauss(0, 1), math.sqrt(1 - correlation**2)
    while True:
        yield 1 + SPREAD * value
        value = correlation * value + innovation * draw.gauss(0, 1)


def stopped_old(blocks: Iterable[float], precision: float, truth: float) -> Stopped:
    """The rule of before, which looked after every block."""
    timed: list[float] = []
    low = high = math.nan
    for block in blocks:
        timed.append(block)
        if len(timed) < FEWEST_ROUNDS:
            continue
        middle, low, high, *_ = of_rounds(timed)
        assert low is not None
        assert high is not None
        if (high - low) / 2 <= precision * middle:
            return Stopped(len(timed), True, low <= truth <= high)
    return Stopped(len(timed), False, low <= truth <= high)


def replayed(seconds_per_step: Sequence[float], block_steps: int, precision: float) -> Replayed:
    """Run the protocol on a recording. Raises ValueError if the recording ends during the warm-up."""
    recording = len(seconds_per_step) * block_steps
    measure = MeasureSpec(
        warmup_steps=WARMUP_STEPS,
        warmup_limit_steps=WARMUP_LIMIT_STEPS,
        steps=recording,
        block_steps=block_steps,
        precision=precision,
    )
    protocol = Protocol(measure, 0)
    warm = 0
    for value in seconds_per_step:
        if not protocol.going:
            break
        warm += protocol.block.phase != MEASURE
        protocol.add(value)
    timed = tuple(seconds_per_step[warm:])
    if not timed:
        raise ValueError(f"a recording of {recording} steps ends in the warm-up")
    return Replayed(timed, len(protocol.timed), not protocol.going)


def fixed_blocks(runs: Sequence[Replayed], precision: float, part: float) -> int:
    """The smallest number of blocks with which this share of the runs is known to the precision.

    If none does, the length of the longest recording. No run has more blocks than its recording.
    """
    most = max(len(run.timed) for run in runs)
    for blocks in range(1, most):
        if sum(is_known(run.timed[:blocks], precision, last=True) for run in runs) >= part * len(runs):
            return blocks
    return most


def holds(run: Replayed) -> bool:
    return _holds(run.timed[: run.taken], fmean(run.timed))


def _holds(timed: Sequence[float], truth: float) -> bool:
    error = mean_error(timed)
    assert error is not None, "it stopped"
    return abs(fmean(timed) - truth) <= error.half_width * fmean(timed)
