"""Compares each point's step with the roofline of its devices, using measured ceilings.

Williams, Waterman and Patterson 2009 (Roofline, CACM 52(4)): a step takes at least the larger of its operations at the
rate of a matrix product, and its bytes at that of a copy. The operations are the catalogue's arithmetic, the bytes the
least that must go to memory (analysis/scaling/roofline.py; docs/breakdown.md). MFU, by contrast, uses the vendor's peak
(analysis/measures/flops.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from analysis.base.column import REAL, TEXT, Column, table
from analysis.base.text import DASH, duration, number, percent, size
from analysis.measures.flops import training_flops_per_sample
from analysis.read.row import Run
from analysis.scaling.roofline import work_of
from analysis.tables.columns import LAST, PLACE, RUNS, SERIES, of_point
from analysis.tables.pairing import spec_of
from analysis.tables.point import Point
from harness.core.spec import EMULATED
from harness.core.strategies import info
from models import catalog

COMPUTE, MEMORY = "compute", "memory"
ROOFLINE_NOTE = (
    "What a step would take if all of it ran as fast as the device's own best: the larger of its operations at the "
    "rate of a product of two square matrices, and its bytes at the rate of a copy. Both rates were measured by the "
    "run, after training, in its precision, with its threads, on all ranks at the same time; the rank with the least "
    "counts. The operations are the catalogue's arithmetic; the bytes are estimated: the least that must go to memory, "
    "as if everything that can be fused were. So the limit is a lower one. Of the limit: limit / measured step, "
    "communication and data included; alone: without what the ranks exchange, from cached batches. This is not the MFU "
    "of the section on lost time, whose ceiling is the maker's figure. docs/breakdown.md."
)


def _giga(unit: str) -> Callable[[float | None], str]:
    """10^9 of a unit, as text."""
    return lambda value: DASH if value is None else f"{number(value / 1e9)} {unit}"


COLUMNS = table(
    *SERIES,
    *PLACE,
    *of_point("gpus", "nodes", "global_batch"),
    RUNS,
    Column("flops_per_step", REAL, heading="Operations per step", show=_giga("GFLOP")),
    Column("bytes_per_step", REAL, heading="Bytes per step", show=size),
    Column("flops_per_byte", REAL, heading="Operations per byte", show=number),
    Column("bytes_basis", TEXT),
    Column("ceiling_flops_per_second", REAL, heading="Matrix product", show=_giga("GFLOP/s")),
    Column("ceiling_bytes_per_second", REAL, heading="Copy", show=_giga("GB/s")),
    Column("ceiling_basis", TEXT),
    Column("bound", TEXT),
    Column("limit_seconds", REAL, heading="Limit of the step", show=duration),
    Column("step_seconds", REAL, heading="Measured step", show=duration),
    Column("of_limit", REAL, heading="Of the limit", show=percent),
    Column("alone_seconds", REAL),
    Column("alone_of_limit", REAL, heading="Alone", show=percent),
    Column("reason", TEXT),
    *LAST,
)


def roofline_of(points: Sequence[Point]) -> list[dict[str, Any]]:
    """One row per point with completed runs that recorded ceilings: the point, and keys of COLUMNS. Rates and bytes
    are per rank."""
    rows = []
    for point in points:
        members = [run for run in point.completed if run.ceilings_json]
        if members:
            rows.append({"point": point, "runs": len(members), **_row(members, point)})
    return rows


def _row(members: Sequence[Run], point: Point) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    told = [run.ceilings for run in members]
    flops, moved = ([one[name] for one in told if one[name]] for name in ("flops", "bytes"))
    if flops and moved:
        columns |= {"ceiling_flops_per_second": fmean(flops), "ceiling_bytes_per_second": fmean(moved)}
        columns["ceiling_basis"] = "measured"
    work = _work(spec_of(members[0]["point"]), point.batch_per_gpu or 0)
    if isinstance(work, str):
        return columns | {"reason": work}
    operations, memory = work
    columns |= {"flops_per_step": operations, "bytes_per_step": memory, "flops_per_byte": operations / memory}
    columns["bytes_basis"] = "estimated"
    if "ceiling_basis" not in columns:
        reasons = sorted({one["reason"] for one in told if one["reason"]})
        return columns | {"reason": "; ".join(reasons) or "its ceilings are not known"}
    computing = operations / columns["ceiling_flops_per_second"]
    moving = memory / columns["ceiling_bytes_per_second"]
    limit = max(computing, moving)
    alone = point.no_sync_seconds
    return columns | {
        "bound": COMPUTE if computing >= moving else MEMORY,
        "limit_seconds": limit,
        "of_limit": limit / point.step_seconds if point.step_seconds else None,
        "alone_seconds": alone,
        "alone_of_limit": limit / alone if alone else None,
    }


def _work(spec: Mapping[str, Any], batch: int) -> tuple[float, float] | str:
    """(floating-point operations, least bytes) of a rank's step, or why they are unknown. spec: plain values."""
    if spec.get("framework") == EMULATED:
        return "an emulated framework computes nothing"
    if info(spec["strategy"]).divides:  # bytes per rank are unknown
        return f"strategy={spec['strategy']} divides the network, or its update, between ranks: not counted per rank"
    dataset = spec["dataset"]
    per_sample = training_flops_per_sample(spec["model"], dataset)
    if per_sample is None:
        return f"the catalogue has no {spec['model']} for this data set"
    size = dataset.get("context") or dataset["image_size"]
    layers = catalog.network(spec["model"]).layers(dataset["channels"], dataset["classes"], size)
    half = spec["precision"] != "fp32"
    work = work_of(layers, per_sample, dataset["channels"], size, half, batch)
    return float(per_sample) * batch, work.memory_bytes
