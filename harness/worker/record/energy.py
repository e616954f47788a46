"""The energy that a rank's device takes, from counters that the machine keeps itself. Standard library only.

With a GPU: the counter of that GPU, from the NVIDIA driver (NVML; Volta and newer); of an older one its power, added
up over time, which is an estimate and said to be one. Without: the counters of the processors, from the kernel's
powercap (RAPL), which hold the whole machine, whoever uses it; most machines let only root read them.
Where there is none, or it cannot be read, nothing is metered, and nothing is guessed.
"""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Callable, List, Optional, Sequence, Tuple

from harness.worker.record import nvml

POWERCAP = Path("/sys/class/powercap")
# How often power is asked for where there is no counter of energy.
POWER_SECONDS = 0.1
# What joules are from, as the start event says it.
COUNTER, POWER = "counter", "power"
Counters = Optional[List[int]]


class Meter:
    """of: what it meters, the same word on all ranks of a machine that read the same counters; None: nothing.
    basis: COUNTER or POWER; None: nothing."""

    def __init__(
        self,
        of: Optional[str] = None,
        read: Optional[Callable[[], List[int]]] = None,
        per_joule: float = 1.0,
        ranges: Sequence[Optional[int]] = (),
        basis: str = COUNTER,
    ) -> None:
        """read: the counters as they stand, so many to a joule. ranges: where each begins again at 0; None: never."""
        self.of, self._read, self._per_joule, self._ranges = of, read, per_joule, ranges
        self.basis = basis if of is not None else None

    def counters(self) -> Counters:
        """None: nothing is metered, or not now."""
        try:
            return self._read() if self._read else None
        except (OSError, ValueError):
            return None

    def joules_since(self, before: Counters) -> Optional[float]:
        after = self.counters()
        if before is None or after is None:
            return None
        used = 0
        for first, last, size in zip(before, after, self._ranges):
            if last < first and size is None:
                return None  # the driver was loaded anew
            used += last - first if last >= first else last - first + int(size or 0)
        return used / self._per_joule


def find(device: str, device_id: Optional[str]) -> Meter:
    """The meter of a rank on `device`; device_id: the UUID of its GPU. Never raises: a run does not need it."""
    try:
        return _gpu(device_id) if device == "cuda" else processors(POWERCAP)
    except (OSError, ValueError):
        return Meter()


def processors(powercap: Path) -> Meter:
    """Of all packages of the machine. Raises OSError, ValueError where there are none, or they cannot be read."""
    zones = [zone for zone in sorted(powercap.glob("*-rapl:*")) if re.fullmatch(r"[a-z]+-rapl:[0-9]+", zone.name)]
    # The others overlap with them, as 'psys' does, which is the whole board.
    packages = [zone for zone in zones if (zone / "name").read_text().startswith("package")]
    if not packages:
        return Meter()
    ranges = [int((zone / "max_energy_range_uj").read_text()) for zone in packages]

    def read() -> List[int]:
        return [int((zone / "energy_uj").read_text()) for zone in packages]

    read()  # whether it may
    return Meter("processors", read, 1e6, ranges)


class AddedPower:
    """Millijoules of a device that has no counter of them: its power, asked for every POWER_SECONDS by a thread of its
    own, times the time that passed (the trapezoidal rule). What happens between two samples is not seen."""

    def __init__(self, watts: Callable[[], Optional[float]]) -> None:
        """Raises OSError where the device does not tell its power."""
        self._watts = watts
        self._joules: Optional[float] = 0.0
        self._last = self._sample()
        self._lock = threading.Lock()
        threading.Thread(target=self._follow, name="power", daemon=True).start()

    def read(self) -> List[int]:
        """Raises OSError when a sample has failed: what was taken meanwhile is not known."""
        with self._lock:
            self._add()
            if self._joules is None:
                raise OSError("the device does not tell its power any more")
            return [round(self._joules * 1e3)]

    def _follow(self) -> None:
        while self._joules is not None:
            time.sleep(POWER_SECONDS)
            with self._lock:
                self._add()

    def _add(self) -> None:
        try:
            now = self._sample()
        except OSError:
            self._joules = None
        if self._joules is not None:
            self._joules += (now[0] - self._last[0]) * (now[1] + self._last[1]) / 2
            self._last = now

    def _sample(self) -> Tuple[float, float]:
        watts = self._watts()
        if watts is None:
            raise OSError("the device does not tell its power")
        return time.perf_counter(), watts


def _gpu(device_id: Optional[str]) -> Meter:
    gpu = nvml.find(device_id)
    if gpu is None:
        return Meter()

    def read() -> List[int]:
        millijoules = gpu.millijoules()
        if millijoules is None:
            raise OSError("NVML has no energy of this GPU")
        return [millijoules]

    if gpu.millijoules() is not None:
        return Meter(gpu.name, read, 1e3, [None])
    return Meter(gpu.name, AddedPower(gpu.watts).read, 1e3, [None], POWER)
