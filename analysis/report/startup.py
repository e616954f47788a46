"""Start-up time of each point's runs by part (analysis/read/columns/startup.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from analysis.base.column import REAL, TEXT, Column, table
from analysis.base.text import duration, span
from analysis.read.columns.startup import PARTS
from analysis.tables.columns import LAST, PLACE, RUNS, SERIES, of_point
from analysis.tables.point import Point

STAGING = "Staging"
# Columns of the page and their parts.
SHOWN = {
    "Batch script": ("job",),
    STAGING: ("stage",),
    "Launch": ("launch",),
    "Interpreter": ("interpreter",),
    "Imports": ("imports",),
    "Data": ("data",),
    "Rendezvous": ("rendezvous",),
    "Build": ("build", "rendezvous_and_build"),
    "Rest": ("verify", "facts", "resume"),
    "First step": ("first_step",),
}
_HEADINGS = {part: heading for heading, parts in SHOWN.items() for part in parts}
STARTUP_NOTE = (
    "From the start of the job to the end of the first step, in the parts of the rank that met the others last; below "
    "each part its shortest and longest over all ranks and runs. Batch script: until the ranks' watchers run, modules "
    "included; not known outside of Slurm. Staging: the environment, unpacked on the nodes, from the archive where it "
    "lies (tar) or from copies that Slurm brings (sbcast). Launch: until the rank's own process runs. First step: with "
    "compilation. Rest: what a run looks up about its machine, a checkpoint, verify=true. Of the first attempt of each "
    "run."
)
OWN_STARTUP_NOTE = "Rest, for your own training: all that it did until its first step."
COLUMNS = table(
    *SERIES,
    *PLACE,
    *of_point("gpus", "nodes", "global_batch"),
    RUNS,
    Column("total_seconds", REAL, heading="Until the first step ended", show=duration),
    Column("total_from", TEXT),
    Column("slowest_ranks", TEXT, heading="Slowest rank"),
    Column("staged", TEXT),
    *(Column(f"{part}_seconds", REAL, heading=_HEADINGS[part], ends=("min", "max")) for part in PARTS),
    *LAST,
)
SHOWN_COLUMNS = [COLUMNS[f"{parts[0]}_seconds"] for parts in SHOWN.values()]


def startup_of(points: Sequence[Point]) -> list[dict[str, Any]]:
    """One row per point with completed runs that recorded their start-up: the point, and keys of COLUMNS. Means over
    the runs; minimum and maximum over all of their ranks."""
    rows = []
    for point in points:
        told = [run.startup_split for run in point.completed if run.startup_split_json]
        if told:
            rows.append({"point": point, "runs": len(told), **_row(told)})
    return rows


def shown(row: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return texts (slowest rank, minimum to maximum) by the headings of SHOWN; "" if unknown."""
    cells = {}
    for heading, parts in SHOWN.items():
        there = [part for part in parts if row.get(f"{part}_seconds") is not None]
        value = sum(row[f"{part}_seconds"] for part in there)
        low, high = (sum(row[f"{part}_seconds_{end}"] for part in there) for end in ("min", "max"))
        beside = [span(low, high, duration), *([row["staged"]] if heading == STAGING and row.get("staged") else [])]
        cells[heading] = (duration(value), ", ".join(beside)) if there else ("", "")
    return cells


def _row(told: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "total_seconds": fmean(one["total"] for one in told),
        "total_from": ";".join(sorted({one["from"] for one in told})),
        "slowest_ranks": ";".join(str(one["slowest_rank"]) for one in told),
        "staged": ";".join(sorted({one["staged"] for one in told if one["staged"]})) or None,
    }
    for part in PARTS:
        found = [one["parts"][part] for one in told if part in one["parts"]]
        if found:
            columns |= {
                f"{part}_seconds": fmean(slowest for slowest, _, _ in found),
                f"{part}_seconds_min": min(low for _, low, _ in found),
                f"{part}_seconds_max": max(high for _, _, high in found),
            }
    return columns
