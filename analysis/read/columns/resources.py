"""Resources that the ranks of a run recorded: energy, memory, device state, network, file reads, NCCL.

They are one JSON column, `resources`, so that a row is the same whether it comes from the logs or from the cache.
Sums stay sums; analysis/measures/resources.py divides them into rates for a whole point.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from analysis.base.numbers import total_if_known
from analysis.base.text import printable
from analysis.base.values import count_of, is_count, joules_of, number_of, seconds_of
from analysis.read.attempts import Attempt, Piece
from analysis.read.log.rank import RankLog
from analysis.read.log.values import MEASURE

MEASURED, ESTIMATED, ABSENT = "measured", "estimated", "absent"
LOOPBACK = "lo"
PEAKS = ("host_peak_bytes", "host_peak_children_bytes", "device_peak_bytes", "device_reserved_peak_bytes")
SUMS = ("read_call_bytes", "read_storage_bytes")
# How the samples of a device's state are reduced to one number per run.
STATES: Mapping[str, Callable[[list[float]], float]] = {
    **dict.fromkeys(["gpu_utilisation", "power_w", "clocks_sm_mhz", "clocks_core_mhz"], fmean),
    **dict.fromkeys(["clocks_sm_max_mhz", "clocks_core_max_mhz", "temperature_c", "memory_used_bytes"], max),
}


def resource_columns(
    attempts: Sequence[Attempt], pieces: Sequence[Piece], ranks: Mapping[int, RankLog], nodes: int
) -> dict[str, Any]:
    """Return the column `resources`: a JSON object with `energy` and, if recorded, the results of the functions below.
    ranks: those of the last attempt."""
    if not ranks:
        return {}
    found: dict[str, Any] = {"energy": _energy(pieces), "slurm": _slurm(attempts)}
    events = [rank.resources for rank in ranks.values()]
    whole = [event for event in events if event is not None]
    if whole and len(whole) == len(events):
        found |= _used(whole, nodes) | {"nccl": _nccl(whole)}
    found["device"] = _device(ranks)
    return {"resources": json.dumps(found)}


def _used(events: Sequence[Mapping[str, Any]], nodes: int) -> dict[str, Any]:
    """Summarise the counted steps: peaks and seconds are maxima over the ranks, the rest sums.
    sent_bytes: sent over the network by all machines; on one node, over its loopback interface."""
    peaks = {name: [n for event in events if (n := count_of(event, name, 0)) is not None] for name in PEAKS}
    source = next((said for event in events if isinstance(said := event.get("device_peak_source"), str)), "")
    # One rank per machine reads its network counters.
    machines = [event for event in events if isinstance(event.get("network_bytes"), dict)]
    used: dict[str, Any] = {
        "steps": max(event["steps"] for event in events),
        "seconds": max(event["seconds"] for event in events),
        "ranks": len(events),
        "processor_seconds": total_if_known(seconds_of(event, "processor_seconds") for event in events),
        **{name: max(values, default=None) for name, values in peaks.items()},
        "device_peak_source": printable(source),
        **{name: total_if_known(count_of(event, name, 0) for event in events) for name in SUMS},
        "processors_joules": total_if_known(joules_of(event, "processors_joules") for event in machines) or None,
    }
    by_interface: dict[str, int] = defaultdict(int)
    for name, n in (pair for event in machines for pair in event["network_bytes"].items()):
        interface, _, word = name.rpartition(" ")
        if word == "sent" and is_count(n, 0) and (interface == LOOPBACK) == (nodes == 1):
            by_interface[printable(interface)] += n
    used["sent_bytes"] = sum(by_interface.values()) if by_interface else None
    used["interfaces"] = dict(by_interface)
    return used


def _energy(pieces: Sequence[Piece]) -> dict[str, Any]:
    """Sum the energy of the counted steps. joules: each device once. of: what was metered. basis: MEASURED, ESTIMATED
    or ABSENT; reason: why it is not MEASURED."""
    blocks = [block for piece in pieces for block in piece.blocks if block.phase == MEASURE]
    joules = total_if_known(block.joules for block in blocks) if blocks else None
    starts = [rank.start for piece in pieces for rank in piece.attempt.ranks.values() if rank.start is not None]
    if joules is None:
        metered = starts and all(start.get("energy_of") for start in starts)
        reason = "a counter could not be read in all of its blocks" if metered else "no counter that its ranks may read"
        return {"joules": None, "of": None, "basis": ABSENT, "reason": reason}
    of_processors = any(start.get("energy_of") == "processors" for start in starts)
    reasons = [_shared(starts)] if of_processors else []
    if any(start.get("energy_basis") == "power" for start in starts):
        reasons.append("power, asked for every 0.1 s and added up")
    reason = "; ".join(filter(None, reasons))
    basis = ESTIMATED if reason else MEASURED
    return {
        "joules": joules,
        "of": "processors" if of_processors else "GPUs",
        "basis": basis,
        "reason": reason or None,
    }


def _shared(starts: Sequence[Mapping[str, Any]]) -> str | None:
    """Return why processor counters may include other jobs; None if the run's ranks had all cores."""
    cores: dict[str, int] = {}
    own: dict[str, set[int]] = defaultdict(set)
    for start in starts:
        machine, n, cpus = str(start.get("machine")), count_of(start, "cores", 1), start.get("cpus")
        if n is None or not isinstance(cpus, list):
            return "the processors' counters hold their whole machine, and which cores the ranks had was not logged"
        cores[machine] = n
        own[machine].update(cpu for cpu in cpus if is_count(cpu, 0))
    for machine, n in cores.items():
        if len(own[machine]) < n:
            had = f"{len(own[machine])} of {n} cores"
            return f"the processors' counters hold their whole machine, of which the ranks had {had}"
    return None


def _slurm(attempts: Sequence[Attempt]) -> dict[str, Any] | None:
    """Sum Slurm's energy of the nodes over all attempts, from start to end; None if Slurm was never queried."""
    told = [attempt.slurm_energy for attempt in attempts]
    if all(one is None for one in told):
        return None
    joules = total_if_known(None if one is None else joules_of(one, "joules") for one in told)
    reasons = [printable(str(one["reason"])) for one in told if one is not None and one.get("reason")]
    if joules is None and not reasons:
        reasons = ["not known of every attempt"]
    return {"joules": joules or None, "reason": next(iter(reasons), None)}


def _device(ranks: Mapping[int, RankLog]) -> dict[str, Any] | None:
    """Reduce the ranks' device samples at the ends of measured blocks. samples: their number. throttled: share of them
    with a throttle reason; throttle: the reasons."""
    samples = []
    for rank in ranks.values():
        ends = {block.end for block in rank.blocks if block.phase == MEASURE} if rank.devices else ()
        samples += [event for event in rank.devices if event.get("step") in ends]
    if not samples:
        return None
    values = {name: [v for s in samples if (v := number_of(s, name, -math.inf)) is not None] for name in STATES}
    reasons = [s["throttle"] for s in samples if isinstance(s.get("throttle"), list)]
    return {
        "samples": len(samples),
        **{name: how(values[name]) if values[name] else None for name, how in STATES.items()},
        "throttled": sum(map(bool, reasons)) / len(reasons) if reasons else None,
        "throttle": sorted({printable(str(reason)) for listed in reasons for reason in listed}),
    }


def _nccl(events: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Merge the choices that NCCL logged on all ranks."""
    told = [event["nccl"] for event in events if isinstance(event.get("nccl"), dict)]
    if not told:
        return None
    counted: dict[str, Counter[str]] = {"transports": Counter(), "algorithms": Counter()}
    for name, counts in counted.items():
        for one in told:
            given = one.get(name)
            for key, n in given.items() if isinstance(given, dict) else ():
                if is_count(n, 1):
                    counts[printable(key)] += n
    networks = {printable(str(one["network"])) for one in told if one.get("network")}
    channels = [n for one in told if (n := count_of(one, "channels", 1)) is not None]
    return {
        "networks": sorted(networks),
        "channels": max(channels, default=None),
        **{name: dict(counts) for name, counts in counted.items()},
    }
