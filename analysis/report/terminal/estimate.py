"""Estimates as a table for the terminal and as JSON: every one marked as such."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from analysis.base.text import DASH, duration, number, printable, span
from analysis.scaling.reference_errors import CALIBRATED, FITTED, ROOFLINE
from analysis.scaling.roofline import Machine, Roofline, Work

if TYPE_CHECKING:
    from rich.console import Console

MARK = "estimated, not measured"
NEXT = (
    f"After runs on one node: `python -m analysis predict`, {CALIBRATED}.",
    f"After two numbers of nodes: the same command, {FITTED}.",
)
NOTE = (
    "Bound: one GPU as fast as its peak and its memory allow, the allreduce hidden behind backward as far as possible. "
    "Exposed: nothing of it hidden. Usual: one GPU reaches what published ones did of their bound, and all or as "
    "little as possible of the allreduce is exposed; it is a range, no interval of a known probability. Rates: samples "
    "per second."
)


def print_rooflines(
    console: Console, title: str, work: Work, machine: Machine, found: Sequence[Roofline], missing: Sequence[str]
) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    console.print(Text(f"{printable(title)}: {MARK}", style="bold"))
    table = Table(box=box.HORIZONTALS, padding=(0, 1, 0, 0), show_edge=False)
    headings = ("GPUs", "nodes", "bound", "exposed", "usual", "compute", "memory", "allreduce\ninside, between")
    for heading in headings:
        table.add_column(heading, justify="right", overflow="fold")
    for one in found:
        table.add_row(
            str(one.size.gpus),
            str(one.size.nodes),
            number(one.bound),
            number(one.exposed),
            span(one.low, one.high),
            duration(one.compute),
            duration(one.memory),
            f"{_link(one.inside)}, {_link(one.between)}",
        )
    console.print(table)
    for line in _sentences(work, machine, found, missing):
        console.print(Text(line))
    console.print(Text(NOTE, style="dim"))


def rooflines_json(
    title: str, work: Work, machine: Machine, found: Sequence[Roofline], missing: Sequence[str]
) -> dict[str, Any]:
    """Rates in samples per second, times in seconds of a step, sizes in bytes, machine in operations and bytes per
    second."""
    return {
        "title": printable(title),
        "mark": MARK,
        "level": "roofline",
        "work": dataclasses.asdict(work),
        "machine": dataclasses.asdict(machine),
        "estimates": [{**dataclasses.asdict(one), "limit": one.limit} for one in found],
        "remarks": _sentences(work, machine, found, missing),
    }


def _link(seconds: float | None) -> str:
    return "none" if seconds == 0 else DASH if seconds is None else duration(seconds)


def _sentences(work: Work, machine: Machine, found: Sequence[Roofline], missing: Sequence[str]) -> list[str]:
    share_known = any(one.low is not None for one in found)
    return [
        f"A sample takes {number(work.flops / 1e9)} GFLOP, {number(work.activation_bytes / 1e6)} MB are kept of it for "
        f"backward; {number(work.gradient_bytes / 1e6)} MB of gradients; a GPU of {number(machine.flops / 1e12)} "
        f"TFLOP/s is limited by {found[0].limit}.",
        *(f"{sentence}." for sentence in missing),
        f"Level: {ROOFLINE}.",
        *(
            ()
            if share_known
            else ("What is usual is not known: no such precision was published, or a link is not known.",)
        ),
        *NEXT,
    ]
