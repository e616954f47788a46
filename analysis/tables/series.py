"""Series of points, and their names: unique, and the same in tables, charts and the report."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, TypeVar

from analysis.base.column import Column
from analysis.base.constants import CHECKPOINT, FAULT, IMPORTED, NO_FAULT, OWN_TRAININGS, PLAIN
from analysis.base.text import count, printable
from analysis.read.row import Run
from analysis.tables.columns import POINT
from analysis.tables.names import training_name
from analysis.tables.pairing import without
from analysis.tables.point import Point
from harness.core.spec import WEAK

T = TypeVar("T")


@dataclass(frozen=True)
class Series:
    """A training at several sizes: its points differ in the number of GPUs, their placement, and the batch size that
    follows from it."""

    points: tuple[Point, ...]  # by GPUs and nodes; at least one

    @property
    def first(self) -> Point:
        return self.points[0]

    @property
    def key(self) -> str:
        """JSON of the fields of the spec that its points share."""
        return self.first.series

    @property
    def work(self) -> str:
        """The key without the strategy."""
        return without_strategy(self.key)

    @property
    def alone(self) -> bool:
        """Whether it is a framework alone."""
        return self.first.strategy == PLAIN

    @property
    def measured(self) -> list[Point]:
        return [point for point in self.points if point.measured]

    @property
    def gaps(self) -> str:
        """The sizes without figures: '4 GPUs (failed), 8 GPUs (missing)'."""
        return ", ".join(f"{point.size} ({point.status})" for point in self.points if not point.measured)


def name_series(series: Mapping[str, Run | Point]) -> dict[str, tuple[str, str]]:
    """Return (label, detail) of each series, given by its key (JSON of what its points share) and one of its runs.

    The detail names the fields of the spec in which series with the same label differ. Injected faults are always
    named, so that nobody takes the series for a plain measurement.
    """
    by_label: dict[str, list[str]] = defaultdict(list)
    for key, run in series.items():
        by_label[_label(run)].append(key)
    names = {}
    for label, keys in by_label.items():
        fields = {key: _fields(json.loads(key)) for key in keys}
        differing = [name for name in _all_names(fields) if len({f.get(name, "none") for f in fields.values()}) > 1]
        for key in keys:
            own = fields[key]
            said = {**{name: own.get(name, "none") for name in differing}, FAULT: own[FAULT]}
            detail = ", ".join(
                text for name, value in sorted(said.items(), key=_own_first) if (text := _said(name, value))
            )
            names[key] = (label, printable(detail))
    return names


def without_strategy(key: str) -> str:
    """Return the key of a series without its strategy."""
    return without(key, "strategy", "strategy_options")


def by_series(items: Iterable[T]) -> list[list[T]]:
    """Group points, or losses or rows with a point, that are ordered by series."""
    return [list(group) for _, group in groupby(items, key=lambda item: _point_of(item).series)]


def series_of(points: Iterable[Point]) -> list[Series]:
    """Group points, which are ordered by series."""
    return [Series(tuple(group)) for group in by_series(points)]


def apart_from_alone(series: Sequence[Series]) -> list[Series]:
    """Leave out a framework alone that is the baseline of others."""
    wrapped = {one.work for one in series if not one.alone}
    return [one for one in series if not one.alone or one.work not in wrapped]


def series_in_order(points: Sequence[Point]) -> list[Series]:
    """The series to plot with their measured points, in the user's order, else most sizes first. Leaves out a framework
    alone that is the baseline of others: its speedup is 1 on one GPU by definition."""
    series = apart_from_alone(series_of(point for point in points if point.measured))
    return sorted(
        series,
        key=lambda one: (
            math.inf if one.first.shown is None else one.first.shown.place,
            -len({point.gpus for point in one.points}),
        ),
    )


def rate_column(points: Iterable[Point]) -> Column:
    """The column of throughputs, headed 'Samples/s', or 'Tokens/s' where every point counts tokens."""
    column, units = POINT["samples_per_second"], {point.rate_unit for point in points}
    unit = units.pop() if len(units) == 1 else column.unit
    return replace(column, heading=unit[:1].upper() + unit[1:])


def natural_order(text: str) -> list[tuple[int, int, str]]:
    """Return a sort key under which resnet20 comes before resnet110, and a batch of 64 before one of 1,024."""
    parts = re.split(r"([0-9]{1,18})", text.replace(",", ""))
    return [(1, int(part), "") if part.isdecimal() and part.isascii() else (0, 0, part) for part in parts if part]


def scaling_text(run: Run | Point) -> str:
    """Return e.g. 'weak scaling, 128 per GPU' or 'strong scaling, global batch 1,024'."""
    if run.samples_per_step is None and run.framework == IMPORTED:
        return "batch not stated"
    if run.scaling == WEAK:
        batch = f"{count(run.batch_per_gpu)} per {'rank' if run.device == 'cpu' else 'GPU'}"
    else:
        batch = f"global batch {count(run.global_batch)}"
    return f"{run.scaling} scaling, {batch}"


def _point_of(item: Any) -> Point:
    if isinstance(item, Point):
        return item
    point: Point = item["point"] if isinstance(item, Mapping) else item.point
    return point


def _label(run: Run | Point) -> str:
    if run.framework in OWN_TRAININGS:
        return f"{run.model} ({scaling_text(run)})"
    return f"{training_name(str(run.framework), str(run.strategy))}, {run.model} on {run.dataset} ({scaling_text(run)})"


def _fields(spec: dict[str, Any]) -> dict[str, str]:
    """Return the fields of a spec as texts by dotted name; checkpoint and fault in words."""
    checkpoint, fault = spec.pop("checkpoint", {}), spec.pop("fault", {})
    return flat(spec) | {CHECKPOINT: _checkpoint(**checkpoint), FAULT: _fault(**fault)}


def _checkpoint(interval_steps: Any = 0, **others: Any) -> str:
    """Return e.g. 'checkpoint every 20 steps'; empty at the default."""
    every = [f"checkpoint every {interval_steps} steps"] if interval_steps else []
    return ", ".join(every + _assigned(CHECKPOINT, others))


def _fault(name: Any = NO_FAULT, step: Any = 0, rank: Any = 0, seconds: Any = 0, **others: Any) -> str:
    """Return e.g. 'fault=kill_rank at step 50', with the rank unless 0, and the seconds if any; empty at the
    default."""
    words = f"fault={name} at step {step}" if step or name != NO_FAULT else ""
    words += f" on rank {rank}" if rank else ""
    words += f", {seconds} s per step" if seconds else ""
    return ", ".join(([words] if words else []) + _assigned(FAULT, others))


def _assigned(prefix: str, fields: Mapping[str, Any]) -> list[str]:
    return [f"{prefix}.{name}={value}" for name, value in sorted(fields.items())]


def _own_first(field: tuple[str, str]) -> tuple[bool, str]:
    """Sort key: what identifies a training of the user's own is long, so it comes after what they vary."""
    name = field[0]
    return name.startswith("workload.") and not name.startswith("workload.params."), name


def _said(name: str, value: str) -> str:
    if name in (CHECKPOINT, FAULT):
        return value
    if name == "workload.params":  # none at all, which each of the others' parameters says
        return ""
    if name == "workload.code":
        value = re.sub(r"^(git:[0-9a-f]{12})[0-9a-f]+", r"\1", value)
    for prefix in ("columns.", "workload.params.", "workload."):
        name = name.removeprefix(prefix)
    return f"{name}={value}"


def flat(value: Any, prefix: str = "") -> dict[str, str]:
    """Return a spec, or a part of it, as texts by dotted name."""
    if isinstance(value, dict) and value:
        found: dict[str, str] = {}
        for name, inner in value.items():
            found |= flat(inner, f"{prefix}.{name}" if prefix else str(name))
        return found
    return {prefix: value if isinstance(value, str) else json.dumps(value)}


def _all_names(fields: Mapping[str, Mapping[str, str]]) -> list[str]:
    return sorted({name for flat in fields.values() for name in flat})
