"""The figures of merit, one function each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from analysis.attempts import total_if_known

Range = tuple[float | None, float | None]


def throughput(samples: Iterable[float], seconds: Iterable[float]) -> float:
    """Samples per second over several runs or blocks: all samples by all seconds.

    This is the harmonic mean of the rates, weighted by samples, as rates are to be combined (Smith, CACM 31(10),
    1988; Hoefler and Belli, SC15, rule 3). An arithmetic mean would give a fast minute the weight of a slow hour.
    """
    return math.fsum(samples) / math.fsum(seconds)


def spread(run_rates: Sequence[float], block_rates: Sequence[float]) -> tuple[float | None, float | None, str | None]:
    """(low, high, basis) of a point's throughput, in samples per second; (None, None, None) where nothing varied.

    With two runs or more: the smallest and the largest of the runs. With one: the 5th and the 95th percentile of its
    blocks, which shows how steady the run was, and not what another run would give.
    """
    if len(run_rates) >= 2:
        return min(run_rates), max(run_rates), f"{len(run_rates)} runs"
    if len(block_rates) >= 2:
        return percentile(block_rates, 0.05), percentile(block_rates, 0.95), "blocks of one run"
    return None, None, None


def percentile(values: Sequence[float], fraction: float) -> float:
    """Linear between the two nearest ranks (Hyndman and Fan 1996, definition 7: NumPy's default)."""
    ordered = sorted(values)
    position = fraction * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def speedup(rate: float, base_rate: float) -> float:
    """Throughput by the throughput of the series' smallest number of GPUs m; ideal on n GPUs is n / m."""
    return rate / base_rate


def efficiency(rate: float, gpus: int, base_rate: float, base_gpus: int) -> float:
    """Parallel efficiency: throughput per GPU by that of the series' smallest number of GPUs; ideal is 1."""
    return (rate / gpus) / (base_rate / base_gpus)


def speedup_range(rates: Range, base_rates: Range) -> Range:
    """The smallest and the largest speedup that both spreads allow: a range, and not a confidence interval."""
    if None in (*rates, *base_rates) or base_rates[0] == 0:
        return None, None
    return rates[0] / base_rates[1], rates[1] / base_rates[0]  # type: ignore[operator]


def goodput(useful_seconds: Iterable[float | None], allocated_seconds: Iterable[float | None]) -> float | None:
    """Useful step time by allocated time, over several runs: all useful seconds by all allocated seconds.

    Useful are the seconds of the steps that the training consists of: warm-up, re-warm-up and measured steps, each step
    once (what an attempt had done after the checkpoint that the run went on from does not count), each block as long as
    its slowest rank took. Allocated are, summed over the attempts, the seconds from the attempt's begin to its last
    sign of life: the latest exit or event of any rank. The time between attempts, in the queue, is not allocated and
    not counted. Start-up, evaluation, probes and checkpoints are allocated but not useful.

    None where the seconds of one of the runs are not known: a part of them would be another figure.
    """
    useful, allocated = total_if_known(useful_seconds), total_if_known(allocated_seconds)
    return None if useful is None or not allocated else useful / allocated


def gpu_hours(gpus: int, seconds: float | None) -> float | None:
    """Of so many GPUs (on a CPU machine: ranks) for so many seconds."""
    return None if seconds is None else gpus * seconds / 3600


def data_stall(step_seconds: float | None, cached_batch_seconds: float | None) -> float | None:
    """Seconds per step spent waiting for data: a full step less a step on a batch that is there already.

    Not clamped: a small negative value is noise of the measurement, and shows how large that is.
    """
    return _difference(step_seconds, cached_batch_seconds)


def exposed_communication(cached_batch_seconds: float | None, no_sync_seconds: float | None) -> float | None:
    """Seconds per step of communication that computing does not hide: a step less one without synchronisation.

    Both on a cached batch, so that data plays no part. Not clamped, for the reason given at `data_stall`.
    """
    return _difference(cached_batch_seconds, no_sync_seconds)


def relative(difference: float, scale: float) -> float:
    """The difference by what it is a part of; infinite where that is nothing, and the difference is not."""
    if not scale:
        return math.inf if difference else 0.0
    return difference / scale


def _difference(minuend: float | None, subtrahend: float | None) -> float | None:
    return None if minuend is None or subtrahend is None else minuend - subtrahend
