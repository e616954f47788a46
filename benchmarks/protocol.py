"""Time saved by the adaptive protocol compared with a fixed number of steps, at equal interval width.

Replays the protocol (harness/core/measuring) on recorded step times (record.py; recorded/step_times.json names
networks, dates and the machine). It extends the warm-up until the step time is stationary and then takes blocks until
the relative half-width of the 95 % interval of their median is at most `precision`, or the recording ends.

The peer uses one fixed number of blocks for all runs after the same warm-up: the smallest that gives the required width
in every run, as someone fixing it in advance would need, or in half of the runs. If none does, it is the length of the
longest recording. No run has more blocks than its recording. Compared is the time of the timed steps, excluding the
warm-up, which is the same. Both use the same runs: n pairs, and no clock is read.

The intervals assume independent blocks, which does not hold on shared machines, and stopping on a narrow interval
lowers its coverage. So the coverage of the whole recording's median after warm-up is reported too. It is the reason why
points must be repeated in separate jobs to get an interval of their throughput.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import fmean, median
from typing import Any, NamedTuple

from benchmarks.common import Row, median_of_ratios
from benchmarks.record import RECORDED
from harness.core.measuring.protocol import MEASURE, Protocol
from harness.core.measuring.steady_state import median_interval, relative_half_width
from harness.core.spec import MeasureSpec

# The value of conf/measure/default.yaml, and values that noisier machines reach.
PRECISIONS = (0.02, 0.05, 0.1)
WARMUP_STEPS, WARMUP_LIMIT_STEPS = 20, 200


class Replayed(NamedTuple):
    """Outcome of the protocol on a recorded run.

    timed: seconds per step of all blocks after the warm-up, in order. taken: number of blocks used. precise: whether
    it stopped because the interval was narrow enough.
    """

    timed: tuple[float, ...]
    taken: int
    precise: bool

    def seconds(self, blocks: int, block_steps: int) -> float:
        return sum(self.timed[:blocks]) * block_steps


def rows() -> list[Row]:
    document = json.loads(RECORDED.read_text(encoding="utf-8"))
    return [row for precision in PRECISIONS for row in of_precision(document, precision)]


def of_precision(document: dict[str, Any], precision: float) -> list[Row]:
    steps = document["block_steps"]
    runs = [replayed(run["seconds_per_step"], steps, precision) for run in document["runs"]]
    ours = [run.seconds(run.taken, steps) for run in runs]
    result = []
    for share, whom in ((1.0, "every run needs"), (0.5, "half of the runs need")):
        blocks = fixed_blocks(runs, precision, share)
        peer = [run.seconds(blocks, steps) for run in runs]
        what = f"timed steps until ± {precision:.0%}, beside as many as {whom}"
        result.append(Row(what, "s", ours, f"{blocks * steps} steps", peer, median_of_ratios(ours, peer)))
        saved = [100 * (1 - a / b) for a, b in zip(ours, peer, strict=True)]
        result.append(Row("… time saved, of each run", "%", saved))
    noisy = [100.0 * (not run.precise) for run in runs]
    result.append(
        Row(f"… share of the {len(runs)} runs too noisy for ± {precision:.0%} in their recording", "%", [fmean(noisy)])
    )
    inside = [100.0 * holds(run) for run in runs if run.precise]
    if inside:
        what = f"… share of the {len(inside)} others whose interval holds the recording's median"
        result.append(Row(what, "%", [fmean(inside)]))
    return result


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


def fixed_blocks(runs: Sequence[Replayed], precision: float, share: float) -> int:
    """The smallest number of blocks that gives the required interval width in this share of the runs.

    If none does, the length of the longest recording. No run has more blocks than its recording.
    """
    most = max(len(run.timed) for run in runs)
    for blocks in range(1, most):
        half_widths = [relative_half_width(run.timed[:blocks]) for run in runs]
        if sum(width is not None and width <= precision for width in half_widths) >= share * len(runs):
            return blocks
    return most


def holds(run: Replayed) -> bool:
    interval = median_interval(run.timed[: run.taken])
    assert interval is not None, "it was narrow enough"
    return interval[0] <= median(run.timed) <= interval[1]
