"""Speedup, efficiency, serial fraction, GPU-hours."""

from __future__ import annotations


def speedup(rate: float, base_rate: float) -> float:
    """Return throughput relative to that of the series' smallest number of GPUs, m; ideal on n GPUs is n / m."""
    return rate / base_rate


def efficiency(rate: float, gpus: int, base_rate: float, base_gpus: int) -> float:
    """Return parallel efficiency: throughput per GPU relative to the series' smallest number of GPUs; ideal is 1."""
    return (rate / gpus) / (base_rate / base_gpus)


def karp_flatt(speedup: float, gpus: float) -> float:
    """Return the experimentally determined serial fraction (Karp and Flatt, CACM 33(5), 1990): the share of the work
    (in weak scaling, of the scaled work) that, if serial, would explain this speedup. Above 1 if more GPUs are slower,
    below 0 if speedup is superlinear."""
    return (1 / speedup - 1 / gpus) / (1 - 1 / gpus)


def gpu_hours(gpus: int, seconds: float) -> float:
    """Return GPU-hours, or rank-hours on CPUs."""
    return gpus * seconds / 3600
