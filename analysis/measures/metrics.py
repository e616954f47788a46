"""Speedup, efficiency, serial fraction, GPU-hours."""

from __future__ import annotations


def speedup(rate: float, base_rate: float) -> float:
    """Throughput by the throughput of the series' smallest number of GPUs m; ideal on n GPUs is n / m."""
    return rate / base_rate


def efficiency(rate: float, gpus: int, base_rate: float, base_gpus: int) -> float:
    """Parallel efficiency: throughput per GPU by that of the series' smallest number of GPUs; ideal is 1."""
    return (rate / gpus) / (base_rate / base_gpus)


def karp_flatt(speedup: float, gpus: float) -> float:
    """The experimentally determined serial fraction (Karp and Flatt, CACM 33(5), 1990): the share of the work that,
    done by one GPU at a time, would give this speedup on so many GPUs; in weak scaling, of the scaled work. Above 1
    if more GPUs are slower, below 0 if speedup is superlinear."""
    return (1 / speedup - 1 / gpus) / (1 - 1 / gpus)


def gpu_hours(gpus: int, seconds: float) -> float:
    """Hours of so many GPUs, or ranks on a CPU machine, for so many seconds."""
    return gpus * seconds / 3600
