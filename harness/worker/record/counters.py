"""Kernel counters of the data that a machine and a process have moved. Standard library only.

Counters are cumulative; use the difference between two readings. Missing or unreadable counters are absent, never 0.
"""

from __future__ import annotations

import os
import re
import resource
from pathlib import Path
from typing import Dict, List, Optional, Tuple

from harness.core.measuring.environment import text_of

NET, INFINIBAND = Path("/sys/class/net"), Path("/sys/class/infiniband")
# Values of /sys/class/net/<interface>/type, see linux/if_arp.h.
ETHERNET, IP_OVER_INFINIBAND, LOOPBACK = "1", "32", "772"
# port_xmit_data and port_rcv_data count octets divided by 4 (Documentation/ABI/stable/sysfs-class-infiniband).
INFINIBAND_UNIT_BYTES = 4
# Bytes read by a process: by read() and similar, including the page cache; and from storage
# (Documentation/filesystems/proc.rst, 3.3). Only some network file systems count in read_bytes.
READS = {"rchar": "read_call_bytes", "read_bytes": "read_storage_bytes"}

Counts = Dict[str, int]


class Network:
    """Bytes through this machine's interfaces, as '<interface> sent' and '<interface> received'.

    Covers loopback; physical Ethernet interfaces (those with a device) or, if there are none, as in a container, all
    Ethernet interfaces; and InfiniBand ports as '<adapter>/<port>'. IP over InfiniBand is part of the ports' counters
    and read separately only if those are not readable.
    """

    def __init__(self, net: Path = NET, infiniband: Path = INFINIBAND) -> None:
        self.files: Dict[str, Tuple[Path, int]] = {}
        for port in sorted(infiniband.glob("*/ports/*")):
            for word, name in (("sent", "port_xmit_data"), ("received", "port_rcv_data")):
                path = port / "counters" / name
                if _number(path) is not None:
                    adapter = f"{port.parent.parent.name}/{port.name}"
                    self.files[f"{adapter} {word}"] = (path, INFINIBAND_UNIT_BYTES)
        kinds = {folder: text_of(folder / "type") for folder in sorted(net.glob("*"))}
        wires = [folder for folder, kind in kinds.items() if kind == ETHERNET]
        chosen = [folder for folder in wires if (folder / "device").exists()] or wires
        chosen += [folder for folder, kind in kinds.items() if kind == LOOPBACK]
        if not self.files:
            chosen += [folder for folder, kind in kinds.items() if kind == IP_OVER_INFINIBAND]
        for folder in chosen:
            for word, name in (("sent", "tx_bytes"), ("received", "rx_bytes")):
                path = folder / "statistics" / name
                if _number(path) is not None:
                    self.files[f"{folder.name} {word}"] = (path, 1)

    def read(self) -> Counts:
        found = {name: (_number(path), unit) for name, (path, unit) in self.files.items()}
        return {name: value * unit for name, (value, unit) in found.items() if value is not None}


def reads(process: Path = Path("/proc/self")) -> Counts:
    """Return the bytes read by all threads of this process; empty if the kernel does not report them."""
    lines = (text_of(process / "io") or "").splitlines()
    pairs = [line.split(": ", 1) for line in lines if ": " in line]
    return {READS[name]: int(value) for name, value in pairs if name in READS and value.isdigit()}


def processor_seconds() -> float:
    """Return the CPU seconds, user and system, of all threads of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def peak_bytes(proc: Path = Path("/proc")) -> Counts:
    """Return peak host memory: of this process, and summed over its running children, such as parameter servers.

    Does not use getrusage for ended children, where each counts with all memory its parent had when forking.
    """
    own = _high_water(proc / "self") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    lists = [text_of(path) or "" for path in (proc / "self" / "task").glob("*/children")]
    children = [_high_water(proc / number) for listed in lists for number in listed.split()]
    return {"host_peak_bytes": own, "host_peak_children_bytes": sum(filter(None, children))}


def _high_water(process: Path) -> Optional[int]:
    """Return the process's peak memory in bytes since exec (proc(5): VmHWM)."""
    match = re.search(r"^VmHWM:\s+(\d+) kB$", text_of(process / "status") or "", re.MULTILINE)
    return int(match.group(1)) * 1024 if match else None


class Processors:
    """Clocks and temperature of the cores that this process may use, as far as /sys reports them.

    Clocks are cpufreq's (`scaling_cur_freq`); temperature is the highest among the zones of processor packages.
    """

    MOST_CORES = 16  # reading a core's clock may interrupt it

    def __init__(self, system: Path = Path("/sys")) -> None:
        cores = [system / f"devices/system/cpu/cpu{number}/cpufreq" for number in sorted(os.sched_getaffinity(0))]
        self._clocks = [path / "scaling_cur_freq" for path in cores[: self.MOST_CORES]]
        self._clocks = [path for path in self._clocks if _number(path) is not None]
        highest = [limit for path in cores[:1] if (limit := _number(path / "cpuinfo_max_freq")) is not None]
        self._highest_khz = highest[0] if highest else None
        zones = sorted((system / "class/thermal").glob("thermal_zone*"))
        self._zones = [zone / "temp" for zone in zones if (text_of(zone / "type") or "").startswith(("x86_pkg", "cpu"))]
        self._zones = [path for path in self._zones if _number(path) is not None]

    @property
    def known(self) -> bool:
        return bool(self._clocks or self._zones)

    def state(self) -> Dict[str, Optional[float]]:
        """Return the fields of a `device` event of a rank without a GPU."""
        clocks, heat = _numbers(self._clocks), _numbers(self._zones)
        return {
            "clocks_core_mhz": sum(clocks) / len(clocks) / 1e3 if clocks else None,
            "clocks_core_max_mhz": self._highest_khz / 1e3 if self._highest_khz is not None else None,
            "temperature_c": max(heat) / 1e3 if heat else None,
        }


def difference(before: Counts, after: Counts) -> Counts:
    """Return the differences of counters present in both readings that were not reset in between."""
    return {name: after[name] - n for name, n in before.items() if after.get(name, -1) >= n}


def _numbers(paths: List[Path]) -> List[int]:
    return [value for value in map(_number, paths) if value is not None]


def _number(path: Path) -> Optional[int]:
    text = text_of(path)
    return int(text) if text is not None and text.isdigit() else None
