"""Whether ranks share cores or GPUs, which makes a measurement say nothing about scaling. Standard library only."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, Dict, Iterable, List, Mapping, Optional


def shared_cores_or_gpus(starts: Iterable[Mapping[str, Any]]) -> Optional[str]:
    """Describe how ranks shared cores or GPUs, from their start events; None if they did not, as far as known.

    Ranks are grouped by machine (the kernel's boot id) rather than host name: virtual nodes of one machine share cores.
    """
    starts = list(starts)
    by_machine: Dict[str, List[Mapping[str, Any]]] = defaultdict(list)
    for start in starts:
        if isinstance(start.get("machine"), str) and _count(start, "cores"):
            by_machine[start["machine"]].append(start)
    for ranks in by_machine.values():
        cores = _count(ranks[0], "cores")
        threads = sum(_count(start, "threads") for start in ranks)  # unknown of a training measured from outside
        if threads > cores:
            return f"{len(ranks)} ranks with {threads} threads on a machine with {cores} cores"
        declared = max(_count(start, "cores_declared") for start in ranks)
        if declared > cores:
            return f"a virtual node: the scheduler declares {declared} cores, the machine has {cores}"
    devices = Counter(start["device_id"] for start in starts if isinstance(start.get("device_id"), str))
    shared = [n for device, n in devices.items() if device and n > 1]
    if shared:
        return f"{max(shared)} ranks on one GPU"
    return None


def _count(start: Mapping[str, Any], name: str) -> int:
    value = start.get(name)
    return value if type(value) is int else 0
