"""Resources of each point besides time: energy per sample and epoch, memory, device state, network and file traffic."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from analysis.base.column import COUNT, TEXT, Column, figure, table
from analysis.base.numbers import common, total_if_known
from analysis.base.text import count, energy, number, percent, size
from analysis.read.columns.issue_time import issue_share
from analysis.read.columns.resources import ABSENT, ESTIMATED, MEASURED, PEAKS
from analysis.read.row import Run
from analysis.tables.columns import LAST, PLACE, RUNS, SERIES, of_point
from analysis.tables.point import Point
from harness.core.strategies import info

# From most to least reliable.
BASES = (MEASURED, ESTIMATED, ABSENT)

COLUMNS = table(
    *SERIES,
    *PLACE,
    *of_point("gpus", "nodes", "global_batch"),
    RUNS,
    Column("energy", TEXT, "measured, estimated or absent"),
    Column("energy_of", TEXT, "devices that were metered"),
    Column("energy_reason", TEXT, "why energy was not measured"),
    figure(
        "joules_per_sample",
        "J/sample",
        "energy of the devices per sample, over the timed steps",
        "Energy per sample",
        energy,
    ),
    figure("joules_per_epoch", "J", "energy of the devices per epoch", show=energy),
    figure(
        "processors_joules_per_sample",
        "J/sample",
        "energy of the nodes' processors per sample, if GPUs are metered",
        show=energy,
    ),
    Column("slurm_energy", TEXT, "estimated or absent"),
    figure("slurm_joules_per_run", "J", "energy of the nodes per run, as accounted by Slurm", show=energy),
    Column("slurm_reason", TEXT, "why Slurm's energy is absent"),
    figure(
        "host_peak_bytes", "B", "peak host memory, of the rank with the most", "Memory of the host", size, kind=COUNT
    ),
    figure("host_peak_children_bytes", "B", "peak host memory of a rank's child processes", show=size, kind=COUNT),
    figure(
        "device_peak_bytes",
        "B",
        "peak device memory in use, of the rank with the most",
        "Memory of the device",
        size,
        kind=COUNT,
    ),
    figure("device_reserved_peak_bytes", "B", "peak device memory reserved by the framework", show=size, kind=COUNT),
    Column("device_peak_source", TEXT, "source of the peak device memory"),
    figure("cores_busy_per_rank", "cores", "processor time / elapsed time, per rank", show=number),
    Column("device_samples", COUNT, "samples of the device's state"),
    figure("gpu_utilisation", "1", "share of time in which a kernel was running", "Device", percent),
    figure("power_w", "W", "mean power per device", show=count),
    figure("clocks_mhz", "MHz", "mean clock", show=count),
    figure("clocks_max_mhz", "MHz", "maximum clock", show=count),
    figure("temperature_c", "°C", "highest temperature", show=count),
    figure("throttled", "1", "share of samples in which clocks were held down", show=percent),
    Column("throttle", TEXT, "why clocks were held down, joined by ';'"),
    figure("network_bytes_per_step", "B", "bytes sent per step by all nodes", "Sent per step", size),
    figure("network_required_bytes_per_step", "B", "minimum bytes per step that the exchange needs", show=size),
    Column("interfaces", TEXT, "network interfaces that were counted"),
    figure(
        "read_call_bytes_per_second", "B/s", "read rate of all ranks, including the page cache", "Read per second", size
    ),
    figure("read_storage_bytes_per_second", "B/s", "read rate of all ranks from storage", show=size),
    Column("nccl", TEXT, "algorithm, protocol and transport that NCCL chose"),
    figure(
        "issue_share",
        "1",
        "host time to issue a step into an empty queue / step time, on a GPU",
        show=percent,
    ),
    *LAST,
)


def resources_of(points: Sequence[Point]) -> list[dict[str, Any]]:
    """One row per point with completed runs, in order: the point, and the columns of COLUMNS that it lacks.

    Rates are sums over the runs divided by sums. Peaks are maxima over ranks and runs.
    """
    rows = []
    for point in points:
        members = [run for run in point.completed if run.resources_json]
        if members:
            found = [run.resources for run in members]
            columns = _energy(members, found) | _slurm(found) | _device(found) | _used(members, found, point)
            columns["issue_share"] = issue_share(members)
            rows.append({"point": point, "runs": len(members), **columns})
    return rows


def is_recorded(row: Mapping[str, Any]) -> bool:
    """Return whether anything was recorded; older logs and runs with recording off have nothing."""
    return row["energy"] != ABSENT or row["slurm_energy"] != ABSENT or row.get("host_peak_bytes") is not None


def required_bytes(strategy: str, gpus: int, nodes: int, gradient_bytes: int | None) -> float | None:
    """Return the minimum bytes that an allreduce sends per step over all senders: 2 (k - 1) times the gradients' for k
    nodes over their network, or k ranks of one node; each sends 2 (k - 1) / k (Patarasuk and Yuan 2009, "Bandwidth
    optimal all-reduce algorithms for clusters of workstations"). None: the strategy exchanges something else."""
    if gradient_bytes is None or not info(strategy).sends_allreduce_bytes:
        return None
    return 2.0 * ((nodes if nodes > 1 else gpus) - 1) * gradient_bytes


def _energy(members: Sequence[Run], found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the energy, as reliable as the least reliable run: a mean over only metered runs would mislead."""
    told = [one["energy"] for one in found]
    basis = max((one["basis"] for one in told), key=BASES.index)
    reasons = sorted({one["reason"] for one in told if one["reason"]})
    columns = {"energy": basis, "energy_reason": "; ".join(reasons) or None}
    columns["energy_of"] = next((one["of"] for one in told if one["of"]), None)
    samples = sum(run.samples or 0 for run in members)
    joules = total_if_known(one["joules"] for one in told)
    beside = total_if_known(one.get("processors_joules") for one in found)
    columns["processors_joules_per_sample"] = None if beside is None else beside / samples
    if joules is None:
        return columns
    epoch = common(run.train_samples for run in members)
    per_sample = joules / samples
    return {
        **columns,
        "joules_per_sample": per_sample,
        "joules_per_epoch": None if epoch is None else per_sample * epoch,
    }


def _slurm(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return Slurm's energy, which is of whole attempts and nodes, including start-up, evaluation and probes, so there
    is no figure per sample."""
    told = [one["slurm"] for one in found]
    joules = total_if_known(None if one is None else one["joules"] for one in told)
    if joules is not None:
        return {"slurm_energy": ESTIMATED, "slurm_joules_per_run": joules / len(told)}
    reasons = sorted({one["reason"] for one in told if one and one["reason"]})
    return {"slurm_energy": ABSENT, "slurm_reason": "; ".join(reasons) or "not run by Slurm"}


def _device(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    told = [one["device"] for one in found if one.get("device")]
    clocks = "clocks_sm" if any(one["clocks_sm_mhz"] is not None for one in told) else "clocks_core"
    return {
        "device_samples": sum(one["samples"] for one in told) if told else None,
        "gpu_utilisation": _mean(told, "gpu_utilisation"),
        "power_w": _mean(told, "power_w"),
        "clocks_mhz": _mean(told, f"{clocks}_mhz"),
        "clocks_max_mhz": _largest(told, f"{clocks}_max_mhz"),
        "temperature_c": _largest(told, "temperature_c"),
        "throttled": _mean(told, "throttled"),
        "throttle": ";".join(sorted({reason for one in told for reason in one["throttle"]})) or None,
    }


def _used(members: Sequence[Run], found: Sequence[Mapping[str, Any]], point: Point) -> dict[str, Any]:
    told = [one for one in found if one.get("steps")]
    if not told:
        return {}
    steps, seconds = sum(one["steps"] for one in told), math.fsum(one["seconds"] for one in told)
    rank_seconds = math.fsum(one["seconds"] * one["ranks"] for one in told)
    sent, computed = (total_if_known(one[name] for one in told) for name in ("sent_bytes", "processor_seconds"))
    calls, storage = (total_if_known(one[f"read_{name}_bytes"] for one in told) for name in ("call", "storage"))
    size = common(run.gradient_bytes for run in members)
    interfaces = sorted({name for one in told for name in one["interfaces"]})
    nccl = [one["nccl"] for one in told if one["nccl"]]
    return {
        **{name: _largest(told, name) for name in PEAKS},
        "device_peak_source": told[0]["device_peak_source"],
        "cores_busy_per_rank": _by(computed, rank_seconds),
        "network_bytes_per_step": _by(sent, steps),
        "network_required_bytes_per_step": required_bytes(point.strategy, point.gpus, point.nodes, size),
        "interfaces": ";".join(interfaces) or None,
        "read_call_bytes_per_second": _by(calls, seconds),
        "read_storage_bytes_per_second": _by(storage, seconds),
        "nccl": _nccl_text(nccl) if nccl else None,
    }


def _nccl_text(told: Sequence[Mapping[str, Any]]) -> str:
    """Return e.g. 'network IB; via NET/IB, P2P/IPC; 16 channels'."""

    def every(name: str) -> str:
        return ", ".join(sorted({value for one in told for value in one[name]}))

    channels = _largest(told, "channels")
    parts = [("network ", every("networks")), ("via ", every("transports")), ("", every("algorithms"))]
    said = [before + value for before, value in parts if value]
    return "; ".join([*said, *([f"{channels} channels"] if channels else [])])


def _mean(told: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Return the mean over all samples of all runs."""
    known = [one for one in told if one[name] is not None]
    return _by(math.fsum(one[name] * one["samples"] for one in known), sum(one["samples"] for one in known))


def _largest(told: Iterable[Mapping[str, Any]], name: str) -> Any:
    return max((one[name] for one in told if one[name] is not None), default=None)


def _by(total: float | None, n: float) -> float | None:
    return None if total is None or not n else total / n
