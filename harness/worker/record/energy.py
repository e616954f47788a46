"""Energy of a rank's device, from the machine's own counters. Standard library only.

On GPUs: the energy counter of the NVIDIA driver (NVML; Volta and newer); on older ones integrated power, labelled as an
estimate. On CPUs: the kernel's powercap counters (RAPL), which cover the whole machine whoever uses it and are readable
by root only on most machines. Without a readable counter, nothing is reported.
"""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Callable, List, Optional, Sequence, Tuple

from harness.worker.record import nvml

POWERCAP = Path("/sys/class/powercap")
# Interval of power samples if there is no energy counter.
POWER_SECONDS = 0.1
# Source of the joules, as in the start event.
COUNTER, POWER = "counter", "power"
Counters = Optional[List[int]]


class Meter:
    """of: name of what is metered, equal on all ranks of a machine that read the same counters. basis: COUNTER or
    POWER. Both are None if nothing is metered."""

    def __init__(
        self,
        of: Optional[str] = None,
        read: Optional[Callable[[], List[int]]] = None,
        per_joule: float = 1.0,
        ranges: Sequence[Optional[int]] = (),
        basis: str = COUNTER,
    ) -> None:
        """read: returns the counters, `per_joule` units to a joule. ranges: value at which each wraps to 0, or None."""
        self.of, self._read, self._per_joule, self._ranges = of, read, per_joule, ranges
        self.basis = basis if of is not None else None

    def counters(self) -> Counters:
        """Return the counters; None if not available."""
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
                return None  # the driver was reloaded
            used += last - first if last >= first else last - first + int(size or 0)
        return used / self._per_joule


def find(device: str, device_id: Optional[str]) -> Meter:
    """Return the meter of a rank on `device`; device_id: the UUID of its GPU. Never raises: metering is optional."""
    try:
        return _gpu(device_id) if device == "cuda" else processors(POWERCAP)
    except (OSError, ValueError):
        return Meter()


def processors(powercap: Path) -> Meter:
    """Return the meter of all processor packages. Raises OSError or ValueError if they cannot be read."""
    zones = [zone for zone in sorted(powercap.glob("*-rapl:*")) if re.fullmatch(r"[a-z]+-rapl:[0-9]+", zone.name)]
    # Other zones overlap with packages; e.g. 'psys' covers the whole board.
    packages = [zone for zone in zones if (zone / "name").read_text().startswith("package")]
    if not packages:
        return Meter()
    ranges = [int((zone / "max_energy_range_uj").read_text()) for zone in packages]

    def read() -> List[int]:
        return [int((zone / "energy_uj").read_text()) for zone in packages]

    read()  # raises if not readable
    return Meter("processors", read, 1e6, ranges)


class AddedPower:
    """Energy in millijoules from power, for devices without an energy counter.

    A thread samples power every POWER_SECONDS and integrates by the trapezoidal rule.
    """

    def __init__(self, watts: Callable[[], Optional[float]]) -> None:
        """Raises OSError if the device does not report its power."""
        self._watts = watts
        self._joules: Optional[float] = 0.0
        self._last = self._sample()
        self._lock = threading.Lock()
        threading.Thread(target=self._keep_sampling, name="power", daemon=True).start()

    def read(self) -> List[int]:
        """Return the energy. Raises OSError after a failed sample, since the energy in between is unknown."""
        with self._lock:
            self._add()
            if self._joules is None:
                raise OSError("the device no longer reports its power")
            return [round(self._joules * 1e3)]

    def _keep_sampling(self) -> None:
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
            raise OSError("the device does not report its power")
        return time.perf_counter(), watts


def _gpu(device_id: Optional[str]) -> Meter:
    gpu = nvml.find(device_id)
    if gpu is None:
        return Meter()

    def read() -> List[int]:
        millijoules = gpu.millijoules()
        if millijoules is None:
            raise OSError("NVML reports no energy for this GPU")
        return [millijoules]

    if gpu.millijoules() is not None:
        return Meter(gpu.name, read, 1e3, [None])
    return Meter(gpu.name, AddedPower(gpu.watts).read, 1e3, [None], POWER)
