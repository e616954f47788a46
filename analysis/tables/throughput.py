"""Throughput and goodput of a point, and how sure its throughput is, from its completed runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from analysis.base.numbers import total_if_known
from analysis.read.row import Run
from analysis.stats.estimates import Estimate, of_one_run, of_runs


def throughput(seconds_per_sample: Iterable[float]) -> float:
    """Samples per second over several runs, by the cost of each: one by the mean of the costs.

    This is the harmonic mean of the rates, as rates are to be combined (Smith, CACM 31(10), 1988; Hoefler and Belli,
    SC15, rule 3). Of runs with equal numbers of samples it is all samples by all seconds. An arithmetic mean of the
    rates would give a fast minute the weight of a slow hour.
    """
    return 1 / fmean(seconds_per_sample)


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


def estimate_of(completed: Sequence[Run]) -> Estimate:
    """Seconds per sample of a point, from its completed runs; of a single one from its blocks."""
    if len(completed) > 1:
        return of_runs([run.seconds_per_sample for run in completed])
    (run,) = completed
    return of_one_run(run.seconds_per_sample, run.blocks_error, run.blocks_freedom, run.measured_blocks or 0)
