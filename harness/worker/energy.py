"""The energy that a rank's device takes, from counters that the machine keeps itself. Standard library only.

With a GPU: the counter of that GPU, from the NVIDIA driver (NVML; Volta and newer). Without: those of the processors,
from the kernel's powercap (RAPL), which hold the whole machine, whoever uses it; most machines let only root read them.
Where there is none, or it cannot be read, nothing is metered, and nothing is guessed.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Callable, List, Optional, Sequence

POWERCAP = Path("/sys/class/powercap")
Counters = Optional[List[int]]


class Meter:
    """of: what it meters, the same word on all ranks of a machine that read the same counters; None: nothing."""

    def __init__(
        self,
        of: Optional[str] = None,
        read: Optional[Callable[[], List[int]]] = None,
        per_joule: float = 1.0,
        ranges: Sequence[Optional[int]] = (),
    ) -> None:
        """read: the counters as they stand, so many to a joule. ranges: where each begins again at 0; None: never."""
        self.of, self._read, self._per_joule, self._ranges = of, read, per_joule, ranges

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
    except (OSError, ValueError, AttributeError):
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


def _gpu(device_id: Optional[str]) -> Meter:
    if not device_id:
        return Meter()
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    handle = ctypes.c_void_p()
    name = device_id if device_id.startswith(("GPU-", "MIG-")) else f"GPU-{device_id}"
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(name.encode("ascii"), ctypes.byref(handle)):
        return Meter()

    def read() -> List[int]:
        millijoules = ctypes.c_ulonglong()
        if nvml.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(millijoules)):
            raise OSError("NVML has no energy of this GPU")
        return [millijoules.value]

    read()
    return Meter(name, read, 1e3, [None])
