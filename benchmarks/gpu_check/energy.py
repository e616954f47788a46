"""The driver's energy counter compared with the integral of its power readings under constant load.

Both come from NVML. From Ampere on (except GA100), power is a mean over the last second, so the load starts before the
measurement. They differ by more than the bound if a driver's counter stands still or uses other units; NVIDIA specifies
power to 5 %, and the counter advances about ten times per second.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence

import torch

from benchmarks.gpu_check.figures import Figure, median
from benchmarks.gpu_check.sections import Ask, Report, Skipped
from harness.worker.record import energy, nvml

SIDE, SAMPLE_SECONDS, BEFORE_SECONDS = 4096, 0.02, 2.0
LOW, HIGH = 0.9, 1.1


def run(ask: Ask, report: Report) -> None:
    if ask.reduced:
        raise Skipped("NVML's counter and power are those of a GPU")
    uuid = str(torch.cuda.get_device_properties(0).uuid)
    gpu = nvml.find(uuid)
    if gpu is None or gpu.watts() is None:
        raise Skipped("the driver does not tell the power of this GPU, as of a part of one (MIG)")
    meter = energy.find("cuda", uuid)
    report(Figure("basis of a run's joules", str(meter.basis)))
    if gpu.millijoules() is None:
        raise Skipped("this GPU has no energy counter (Volta is the first with one): a run adds its power up")
    load = Load()
    load.run(BEFORE_SECONDS)
    taken, ratios, powers = [], [], []
    rounds = 8
    each = max(1.0, min(3.0, (ask.seconds_left - 1) / rounds))
    for _ in range(rounds):
        power = Samples(gpu.watts)
        counters, begin = meter.counters(), time.perf_counter()
        load.run(each)
        joules, seconds = meter.joules_since(counters), time.perf_counter() - begin
        added = integral(power.end(), begin, begin + seconds)
        assert joules is not None, "the counter gave a value a moment ago"
        taken.append(joules)
        ratios.append(joules / added)
        powers.append(joules / seconds)
    report(median("counter / integral, at least", ratios, bound=f"≥ {LOW:g}"))
    report(median("counter / integral, at most", ratios, bound=f"≤ {HIGH:g}"))
    report(median("power under load, by the counter", powers, "W"))


def integral(samples: Sequence[tuple[float, float]], begin: float, end: float) -> float:
    """Energy in joules from `begin` to `end`: trapezoidal rule over (seconds, watts), extending the end samples."""
    inside = [(begin, samples[0][1]), *[s for s in samples if begin < s[0] < end], (end, samples[-1][1])]
    return sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in itertools.pairwise(inside))


class Load:
    """Multiplies random matrices without pause."""

    def __init__(self) -> None:
        self.a, self.b = (torch.randn(SIDE, SIDE, device="cuda").half() for _ in range(2))

    def run(self, seconds: float) -> None:
        out, end = torch.empty_like(self.a), time.perf_counter() + seconds
        while time.perf_counter() < end:
            for _ in range(20):
                torch.mm(self.a, self.b, out=out)
            torch.cuda.synchronize()


class Samples:
    """Power samples, read by a background thread until `end`."""

    def __init__(self, watts: Callable[[], float | None]) -> None:
        self._watts, self._stop = watts, threading.Event()
        self._taken: list[tuple[float, float]] = []
        self._take()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def end(self) -> list[tuple[float, float]]:
        self._stop.set()
        self._thread.join()
        self._take()
        return self._taken

    def _follow(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            self._take()

    def _take(self) -> None:
        watts = self._watts()
        if watts is not None:
            self._taken.append((time.perf_counter(), watts))
