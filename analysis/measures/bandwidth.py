"""Network bandwidth of an allreduce as large as the gradients, and how much of it a step hides behind computation.

Bandwidths as nccl-tests defines them (https://github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md), in 10^9 bytes per
second:

    algorithm bandwidth = bytes / seconds
    bus bandwidth       = bytes / seconds x 2 (n - 1) / n, for n ranks

If a link is the bottleneck, the bus bandwidth does not depend on the number of ranks. It is compared with the nominal
rate of that link in one direction: of the link between nodes for runs on several nodes, else of the link of a GPU
inside its node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from analysis.base.text import duration
from analysis.measures.breakdown import SYNCHRONISATION, Parts
from analysis.stats.intervals import Interval
from harness.core.strategies import NETWORK, info

GB = 1e9
NOT_COMPRESSED = (None, "none")
NO_NOMINAL = "no nominal rate of the link in the cluster's configuration"


@dataclass(frozen=True)
class Network:
    """The network as measured at a point; None if unknown, for the reasons in `notes`.

    nominal_gb_per_s: of the link. bus_of_nominal: bus bandwidth as a fraction of it.
    """

    overlap: Interval | None = None
    algorithm_gb_per_s: float | None = None
    bus_gb_per_s: float | None = None
    nominal_gb_per_s: float | None = None
    bus_of_nominal: float | None = None
    notes: tuple[str, ...] = ()


def network_of(
    parts: Parts,
    strategy: str,
    options: Mapping[str, Any],
    gpus: int,
    nodes: int,
    link_gb_per_s: float | None,
    gpu_link_gb_per_s: float | None,
) -> Network:
    """link_gb_per_s, gpu_link_gb_per_s: nominal rates between nodes and inside a node; None if unknown."""
    alone, size = parts.allreduce, parts.allreduce_bytes
    if gpus == 1 or alone is None or alone.estimate <= 0:
        return Network()
    notes = []
    exposed = parts.seconds.get(SYNCHRONISATION)
    comparable = info(strategy).sums_all_gradients and options.get("compress") in NOT_COMPRESSED
    overlap = None
    if exposed is not None and comparable:
        found = hidden(exposed, alone)
        overlap = found if isinstance(found, Interval) else None
        notes += [found] if isinstance(found, str) else []
    elif exposed is not None:
        notes.append("no overlap: a step exchanges other messages than the allreduce alone")
    if info(strategy).servers:
        notes.append("no bus bandwidth: the message goes through parameter servers")
        return Network(overlap, notes=tuple(notes))
    if info(strategy).divides == NETWORK:
        notes.append("no bus bandwidth: replicas sum their gradients, and then all ranks wait for each other")
        return Network(overlap, notes=tuple(notes))
    if not size:
        return Network(overlap, notes=tuple(notes))
    bus = bus_bandwidth(size, alone.estimate, gpus)
    nominal = link_gb_per_s if nodes > 1 else gpu_link_gb_per_s
    if nominal is None:
        notes.append(NO_NOMINAL)
    return Network(
        overlap,
        size / alone.estimate / GB,
        bus,
        nominal,
        None if nominal is None else bus / nominal,
        tuple(notes),
    )


def bus_bandwidth(n_bytes: int, seconds: float, ranks: int) -> float:
    """Bus bandwidth of an allreduce in 10^9 bytes per second."""
    return n_bytes / seconds * 2 * (ranks - 1) / ranks / GB


def hidden(exposed: Interval, alone: Interval) -> Interval | str:
    """Overlap: 1 - exposed / alone, or why there is none. Exposed synchronisation holds more than messages, so this is
    the least that a step hides. The interval is that of the exposed time, between 0 and 1; it ignores the error of
    `alone`."""
    if exposed.estimate < 0:
        return f"no overlap: steps with and without synchronisation differ by noise ({duration(exposed.estimate)})"
    if exposed.estimate > alone.estimate:
        return (
            f"no overlap: exposed synchronisation, {duration(exposed.estimate)}, is longer than the allreduce alone, "
            f"{duration(alone.estimate)}: it holds more than messages"
        )
    return exposed.mapped(lambda seconds: min(1.0, max(0.0, 1 - seconds / alone.estimate)), falling=True)
