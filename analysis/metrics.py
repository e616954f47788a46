"""The figures of merit, one function each."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import fmean

from analysis.attempts import total_if_known


def throughput(seconds_per_sample: Iterable[float]) -> float:
    """Samples per second over several runs, by the cost of each: one by the mean of the costs.

    This is the harmonic mean of the rates, as rates are to be combined (Smith, CACM 31(10), 1988; Hoefler and Belli,
    SC15, rule 3). Of runs with equal numbers of samples it is all samples by all seconds. An arithmetic mean of the
    rates would give a fast minute the weight of a slow hour.
    """
    return 1 / fmean(seconds_per_sample)


def speedup(rate: float, base_rate: float) -> float:
    """Throughput by the throughput of the series' smallest number of GPUs m; ideal on n GPUs is n / m."""
    return rate / base_rate


def efficiency(rate: float, gpus: int, base_rate: float, base_gpus: int) -> float:
    """Parallel efficiency: throughput per GPU by that of the series' smallest number of GPUs; ideal is 1."""
    return (rate / gpus) / (base_rate / base_gpus)


def karp_flatt(speedup: float, gpus: float) -> float:
    """The experimentally determined serial fraction (Karp and Flatt, CACM 33(5), 1990): which part of the work, done by
    one GPU at a time, would give this speedup on so many GPUs. In weak scaling: of the grown work. Above 1 where more
    GPUs are slower, below 0 where the speedup is more than ideal."""
    return (1 / speedup - 1 / gpus) / (1 - 1 / gpus)


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


def relative(difference: float, scale: float) -> float:
    """The difference by what it is a part of; infinite where that is nothing, and the difference is not."""
    if not scale:
        return math.inf if difference else 0.0
    return difference / scale
