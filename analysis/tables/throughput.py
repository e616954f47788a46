"""Throughput of a point with its uncertainty, and goodput, from completed runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from analysis.base.numbers import total_if_known
from analysis.read.row import Run
from analysis.stats.estimates import Estimate, of_one_run, of_runs


def throughput(seconds_per_sample: Iterable[float]) -> float:
    """Return samples per second over several runs: the inverse of the mean seconds per sample.

    This is the harmonic mean of the rates, as appropriate for rates (Smith, CACM 31(10), 1988; Hoefler and Belli, SC15,
    rule 3). For runs of equal numbers of samples it is all samples divided by all seconds; an arithmetic mean of rates
    would give a fast minute the weight of a slow hour.
    """
    return 1 / fmean(seconds_per_sample)


def goodput(useful_seconds: Iterable[float | None], allocated_seconds: Iterable[float | None]) -> float | None:
    """Return useful step time / allocated time, summed over several runs; None if either is unknown for one run.

    Useful: seconds of the steps that the training consists of, i.e. warm-up, re-warm-up and measured steps, each step
    once (steps lost between a checkpoint and a failure do not count) and each block as long as on its slowest rank.
    Allocated: for each attempt, the seconds from its begin to its last sign of life, the latest exit or event of any
    rank. Time in the queue between attempts is not allocated. Start-up, evaluation, probes and checkpoints are
    allocated but not useful.
    """
    useful, allocated = total_if_known(useful_seconds), total_if_known(allocated_seconds)
    return None if useful is None or not allocated else useful / allocated


def estimate_of(completed: Sequence[Run]) -> Estimate:
    """Estimate seconds per sample of a point from its completed runs, or from the blocks of a single run."""
    if len(completed) > 1:
        return of_runs([run.seconds_per_sample for run in completed])
    (run,) = completed
    return of_one_run(run.seconds_per_sample, run.blocks_error, run.blocks_freedom, run.measured_blocks or 0)
