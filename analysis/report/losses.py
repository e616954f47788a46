"""The breakdown in words, as terminal tables, and as rows of breakdown.csv and report.json."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from analysis.base.column import COUNT, RANGE, REAL, TEXT, Column, figure, table
from analysis.base.text import DASH, duration, number, percent
from analysis.measures.breakdown import COMPUTE, PART_NAMES, SYNCHRONISATION, UNDIVIDED, UNEXPLAINED
from analysis.measures.losses import Loss, Losses
from analysis.measures.pop import EFFICIENCIES
from analysis.report.frame import framed, heading, stacked
from analysis.report.sentences import baseline, ranged
from analysis.stats.intervals import Interval
from analysis.tables.bases import columns_of
from analysis.tables.columns import POINT, of_point
from analysis.tables.series import by_series
from analysis.tables.warnings import BASELINE_OVERSUBSCRIBED, OVERSUBSCRIBED

# Names of parts that are larger than in the baseline.
LOSS_NAMES = {**PART_NAMES, COMPUTE: "slower compute", UNDIVIDED: "compute and communication together"}

MOST_RIVALS = 3  # losses named where the largest cannot be told

BREAKDOWN_NOTE = (
    "Parts of a step's time: medians over the rounds of the probes. Below each, what it costs in efficiency, relative "
    "to the base, with its 95 % interval. Shown as measured: a negative one is noise, or a gain. Unexplained is what "
    "the timed steps took beyond the probes' full step."
)

_COST = "share of efficiency that it costs; 1 less all of them is the efficiency"
COLUMNS = table(
    *of_point("framework", "strategy", "model", "dataset", "precision", "scaling", "detail", "cluster", "device"),
    *of_point("device_names", "gpus", "nodes", "ranks_per_node", "global_batch", "batch_per_gpu", "runs_completed"),
    *of_point("relative_to_gpus", "relative_to_strategy"),
    Column("efficiency", REAL),  # scaling.csv has its interval
    POINT["step_seconds"],
    figure("ideal_step_seconds", "s", "step time at 100 % efficiency", show=duration),
    *(
        figure(f"{part}_seconds", "s", f"{name}: seconds of a step", name.capitalize(), duration, RANGE, "parts_basis")
        for part, name in PART_NAMES.items()
    ),
    figure(
        "traced_exposed_communication_seconds",
        "s",
        "from a trace: time of messages that compute does not hide, mean and range over the ranks",
        ends=RANGE,
    ),
    Column("parts_basis", TEXT, heading="Intervals from"),
    *(Column(f"lost_to_{part}_seconds", REAL, ends=RANGE) for part in PART_NAMES),
    *(
        figure(f"efficiency_lost_to_{part}", "1", f"{name}: {_COST}", ends=RANGE, basis="lost_basis")
        for part, name in PART_NAMES.items()
    ),
    Column("lost_basis", TEXT),
    *(figure(key, "1", f"POP's efficiency: {name}", name.capitalize(), percent) for key, name in EFFICIENCIES.items()),
    figure(
        "allreduce_seconds", "s", "time of an allreduce of the gradients' size alone", ends=RANGE, basis="parts_basis"
    ),
    Column("allreduce_bytes", COUNT, "bytes of that allreduce"),
    figure("overlap", "1", "minimum share of that allreduce that a step hides", "Overlap", ends=RANGE),
    figure("algorithm_gb_per_s", "GB/s", "algorithm bandwidth of that allreduce, 10^9 bytes"),
    figure("bus_gb_per_s", "GB/s", "bus bandwidth of that allreduce, 10^9 bytes", "Bus bandwidth"),
    figure(
        "step_bus_gb_per_s_at_most",
        "GB/s",
        "always null: exposed synchronisation time does not bound the bandwidth of a step's messages",
    ),
    figure("nominal_gb_per_s", "GB/s", "nominal rate of the link"),
    figure("bus_of_nominal", "1", "bus bandwidth / nominal rate of the link"),
    figure("tflops_per_gpu", "TFLOP/s", "achieved per GPU, 10^12 operations/s", "TFLOP/s per GPU"),
    figure("peak_tflops", "TFLOP/s", "nominal peak of one GPU"),
    Column("peak_source", TEXT, "source of the nominal peak, or why there is none"),
    figure("model_flops_utilisation", "1", "achieved / nominal peak operations (MFU)", "MFU"),
    Column("probe_rounds", COUNT, "rounds of probes, minimum over the runs", "Probes"),
    figure("probe_share", "1", "share of the run time spent on probes, maximum over the runs"),
    Column("notes", TEXT, "what was left out, and why"),
    *of_point("marks", "oversubscribed", "run_ids"),
)
# The columns of the parts, by the names of the parts.
PART_COLUMNS = {part: COLUMNS[f"{part}_seconds"] for part in PART_NAMES}


def parts_shown(losses: Iterable[Loss]) -> list[str]:
    """Return the parts that any of the points has, in the order of the waterfall chart."""
    found = {part for loss in losses if loss.parts for part in loss.parts.seconds}
    return [part for part in PART_NAMES if part in found]


def loss_sentences(losses: Losses) -> list[str]:
    """One sentence per series, on its largest point with parts; none if no loss is told from 0."""
    sentences = []
    for group in by_series(losses.points):
        with_parts = [loss for loss in group if loss.shares]
        if with_parts and (said := _sentence(with_parts[-1])):
            sentences.append(said)
    return sentences


def _sentence(loss: Loss) -> str | None:
    said = largest_text(loss, share_text)
    if said is None:
        return None
    point = loss.point
    text = f"{point.name}, on {point.size} relative to {baseline(point)}: {said[:1].upper()}{said[1:]}"
    known = any(share.low is not None for share in loss.shares.values())
    text += f"; {'95 % intervals from ' if known else ''}{loss.basis}"
    marks = point.marks
    if marks:
        text += f" ({'; '.join(marks)})"
    if OVERSUBSCRIBED in marks or BASELINE_OVERSUBSCRIBED in marks:
        return f"{text}. This is not a scaling result: ranks shared cores or GPUs."
    return f"{text}."


def largest_text(loss: Loss, figure: Callable[[Interval], str]) -> str | None:
    """Return "the largest loss is exposed synchronisation, 9.1 %", or what it may be if that cannot be told; None if no
    loss is told from 0. figure: formats a share."""
    largest = loss.largest
    if largest is None:
        return None
    said = [f"{LOSS_NAMES[part]}, {figure(loss.shares[part])}" for part in largest.parts[:MOST_RIVALS]]
    if not largest.told:
        estimates = f"largest estimate{'s' * (len(said) > 1)}"
        return f"which loss is the largest cannot be told; {estimates}: {'; '.join(said)}"
    if largest.parts[0] == UNEXPLAINED:
        return f"the largest part of the loss is not explained by the probes, {figure(loss.shares[UNEXPLAINED])}"
    return f"the largest loss is {said[0]}"


def lacking_sentences(losses: Losses, most: int) -> list[str]:
    """Runs without probes, by reason, naming at most so many per reason."""
    sentences = []
    for reason, ids in losses.lacking.items():
        more = f" and {len(ids) - most:,} more" if len(ids) > most else ""
        sentences.append(f"where the time went is not known of {', '.join(ids[:most])}{more}: {reason}")
    return sentences


def loss_tables(losses: Losses) -> list[Table]:
    """Return one table per series that has parts, with two lines per point."""
    tables = []
    for rows in by_series(loss for loss in losses.points if loss.parts is not None):
        point = rows[0].point
        table = framed(f"Where the time went: {point.series_name}")
        table.add_column("ranks\nn x r" if point.device == "cpu" else "GPUs\nn x r")
        parts = parts_shown(rows)
        for text in (
            stacked(POINT["step_seconds"], POINT["efficiency"], wide=True),
            *(heading(PART_COLUMNS[part]).replace(" ", "\n", 1) for part in parts),
            stacked(COLUMNS["overlap"], COLUMNS["parallel_efficiency"]),
        ):
            table.add_column(text, justify="right", overflow="fold")
        table.add_column(stacked(COLUMNS["parts_basis"], POINT["marks"]), overflow="fold")
        for row in rows:
            table.add_row(*_cells(row, parts))
        tables.append(table)
    return tables


def _cells(loss: Loss, parts: Sequence[str]) -> list[Text]:
    point = loss.point
    assert loss.parts is not None
    cells = [
        f"{point.gpus}\n{point.nodes} x {point.ranks_per_node}",
        f"{duration(loss.parts.step_seconds)}\n{percent(point.efficiency)}",
        *(
            f"{part_text(loss.parts.seconds.get(part))}\n{share_text(loss.shares.get(part))}{traced_text(loss, part)}"
            for part in parts
        ),
        f"{percent(loss.network.overlap.estimate) if loss.network.overlap else DASH}\n"
        f"{percent(loss.efficiencies['parallel_efficiency'])}",
    ]
    basis = Text(loss.basis or loss.parts.basis)
    basis.append("\n" + ", ".join(point.marks), style="yellow")
    return [*map(Text, cells), basis]


def part_text(part: Interval | None) -> str:
    return DASH if part is None else duration(part.estimate)


def traced_text(loss: Loss, part: str) -> str:
    """Describe what a trace shows beside the probes; empty without a trace."""
    if part != SYNCHRONISATION or loss.traced is None:
        return ""
    return f"\ntrace: {ranged(loss.traced, duration)} exposed communication"


def share_text(share: Interval | None) -> str:
    """Format as '9.1 % (7.0-11.2 %)', without an interval as '9.1 %'."""
    return ranged(share, tenths)


def tenths(share: float | None) -> str:
    """Format as percent with one decimal; never '-0.0'."""
    return percent(None if share is None else round(share, 3) + 0.0, 1)


def network_text(loss: Loss) -> str:
    """Format bus bandwidth and the nominal rate in one line."""
    network = loss.network
    if network.bus_gb_per_s is None:
        return DASH
    text = f"{number(network.bus_gb_per_s)} GB/s"
    if network.bus_of_nominal is not None:
        text += f", {percent(network.bus_of_nominal, 1)} of {number(network.nominal_gb_per_s)} GB/s"
    return text


def breakdown_row(loss: Loss) -> dict[str, Any]:
    """The point, and the columns of COLUMNS that it lacks."""
    parts, network = loss.parts, loss.network
    row: dict[str, Any] = {"point": loss.point, "ideal_step_seconds": loss.ideal_seconds}
    for name in PART_NAMES:
        row |= columns_of(f"{name}_seconds", parts.seconds.get(name) if parts else None)
        row |= columns_of(f"lost_to_{name}_seconds", loss.lost.get(name))
        row |= columns_of(f"efficiency_lost_to_{name}", loss.shares.get(name))
    return {
        **row,
        **loss.efficiencies,
        **columns_of("allreduce_seconds", parts.allreduce if parts else None),
        **columns_of("overlap", network.overlap),
        **columns_of("traced_exposed_communication_seconds", loss.traced),
        "parts_basis": parts.basis if parts else None,
        "lost_basis": loss.basis,
        "allreduce_bytes": parts.allreduce_bytes if parts else None,
        "algorithm_gb_per_s": network.algorithm_gb_per_s,
        "bus_gb_per_s": network.bus_gb_per_s,
        "step_bus_gb_per_s_at_most": None,
        "nominal_gb_per_s": network.nominal_gb_per_s,
        "bus_of_nominal": network.bus_of_nominal,
        "tflops_per_gpu": loss.tflops,
        "peak_tflops": loss.peak.tflops,
        "peak_source": loss.peak.source,
        "model_flops_utilisation": loss.utilisation,
        "probe_rounds": loss.probe_rounds,
        "probe_share": loss.probe_share,
        "notes": "; ".join(loss.notes) or None,
    }
