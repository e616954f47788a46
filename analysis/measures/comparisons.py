"""Significance tests of which of two series is faster at equal work and an equal number of GPUs.

Two-sided Welch's t test of log seconds per sample over runs (`analysis.stats.estimates.Ratio`), with Holm's correction
over all pairs of a report: a family-wise error rate of 5 %.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any, NamedTuple

from analysis.base.column import COUNT, INTERVAL, REAL, TEXT, Column, figure, table
from analysis.base.constants import IMPORTED
from analysis.base.text import count, listed, percent, probability_text, times
from analysis.read.imported_columns import simplified
from analysis.stats.estimates import ALPHA, ENOUGH_RUNS, POWER, holm, rate_ratio
from analysis.tables.bases import columns_of
from analysis.tables.columns import POINT, of_point
from analysis.tables.pairing import pairing, spec_of
from analysis.tables.point import Point
from analysis.tables.warnings import OVERSUBSCRIBED, WORK_DIFFERS

# Fields in which two series of equal work may differ: how the work is done. All other fields are equal.
HOW = ("framework", "framework_options", "environment", "strategy", "strategy_options", "env")
# Columns of a table from elsewhere that say the same.
HOW_COLUMNS = (*HOW, "backend", "library", "launcher", "version", "commit", "code")
# Columns of a point: where the work was done.
WHERE = ("gpus", "nodes", "ranks_per_node", "global_batch", "batch_per_gpu", "device_names")
LARGEST_FACTOR = 100.0  # larger detectable ratios are not reported
MOST_PAIRS = 3  # more pairs of one place without a difference share a sentence: 8 series are 28 pairs

FASTER, NOT_SHOWN, NOT_TESTED = "faster", "no difference shown", "not tested"

COLUMNS = table(
    Column(
        "faster", TEXT, "the series with the higher throughput; verdict says whether a test shows it", optional=False
    ),
    Column("slower", TEXT, "the other series", optional=False),
    *of_point("model", "dataset", "precision", "scaling", "cluster", "gpus", "global_batch", "batch_per_gpu"),
    Column("runs_faster", COUNT, "completed runs of the faster series"),
    Column("runs_slower", COUNT, "completed runs of the slower series"),
    figure("ratio", "1", "ratio of the two throughputs", show=times, ends=INTERVAL),
    Column("p", REAL, "two-sided p value of Welch's t test on log seconds per sample; null if not tested"),
    Column("p_holm", REAL, "p with Holm's correction over all comparisons of the study"),
    Column("visible_factor", REAL, "minimum detectable ratio at a power of 80 %; null if above 100"),
    Column("verdict", TEXT, "result of the test", choices=(FASTER, NOT_SHOWN, NOT_TESTED)),
    Column("sentence", TEXT, "the comparison as a sentence", optional=False),
    POINT["marks"],
)

COMPARISON_NOTE = (
    "Comparisons: series at the same number of GPUs and the same work, by Welch's t test on the logarithm of seconds "
    f"per sample, two-sided, between the runs of two points; Holm's correction over all pairs of this report, "
    f"{ALPHA:g} for all together. What is not called faster is not shown to be equal."
)


class _Pair(NamedTuple):
    """Two points, the faster one first."""

    fast: Point
    slow: Point

    @property
    def runs(self) -> tuple[int, int]:
        return self.fast.cost.runs, self.slow.cost.runs


@dataclass(frozen=True)
class Comparisons:
    """rows: keys of COLUMNS, one per pair, in the order of the points. left_out: sentences on what was not tested.
    pairs: the two points of each row, the faster one first."""

    rows: tuple[Mapping[str, Any], ...]
    left_out: tuple[str, ...]
    pairs: tuple[tuple[Point, Point], ...] = ()

    @cached_property
    def sentences(self) -> list[str]:
        """One per pair, but one for all pairs of a place without a difference if they are more than MOST_PAIRS."""
        places: dict[tuple[str, int | None], list[Mapping[str, Any]]] = defaultdict(list)
        for row, (fast, _) in zip(self.rows, self.pairs, strict=True):
            shared = (_where(fast), fast.nodes) if row["verdict"] == NOT_SHOWN else (row["sentence"], None)
            places[shared].append(row)
        return [
            sentence
            for (where, _), rows in places.items()
            for sentence in ([_together(where, rows)] if len(rows) > MOST_PAIRS else [row["sentence"] for row in rows])
        ]


def comparisons_of(points: Sequence[Point]) -> Comparisons:
    """Every pair of measured points of different series that did the same work. Skips points whose work is known to
    differ, and points with a single run. points: from `analysis.measures.speedup`."""
    work_differs = single = 0
    pairs: list[_Pair] = []
    groups = pairing((point for point in points if point.completed and point.framework != IMPORTED), HOW, WHERE)
    imported, left_out = _imported([point for point in points if point.completed and point.framework == IMPORTED])
    for members in (*groups.values(), *imported):
        for first, second in combinations(members, 2):
            pair = _Pair(first, second) if first.cost.mean <= second.cost.mean else _Pair(second, first)
            if any(WORK_DIFFERS in point.marks for point in pair):
                work_differs += 1
            elif min(pair.runs) < 2:
                single += 1
            else:
                pairs.append(pair)
    skipped = (*_left_out(work_differs, single, bool(groups)), *left_out)
    return Comparisons(_tested(pairs), skipped, tuple((pair.fast, pair.slow) for pair in pairs))


def _imported(points: Sequence[Point]) -> tuple[list[list[Point]], list[str]]:
    """Group points of a table whose columns say that they did the same work, and say why others did not."""
    groups: dict[str, list[Point]] = defaultdict(list)
    unlike: Counter[str] = Counter()
    for point in points:
        columns = {name: value for name, value in _columns(point).items() if simplified(name) not in HOW_COLUMNS}
        series = {name: value for name, value in spec_of(point.series).items() if name != "columns"}
        batch = point.series if point.global_batch is None else None
        where = [getattr(point, name) for name in WHERE]
        groups[json.dumps([columns, series, where, batch], sort_keys=True)].append(point)
    sizes = pairing(points, fields=(), where=("gpus", "nodes")).values()
    for first, second in (pair for members in sizes for pair in combinations(members, 2)):
        if first.series == second.series:
            continue
        names = [name for name, value in _columns(first).items() if _columns(second)[name] != value]
        others = [name for name in names if simplified(name) not in HOW_COLUMNS]
        if None in (first.global_batch, second.global_batch):
            unlike["their batch is not stated"] += 1
        elif others or first.global_batch != second.global_batch:
            unlike[f"they differ in {listed(others or ['batch'], 'and')}, so perhaps in their work"] += 1
    return list(groups.values()), [f"{_pairs(n)} of series not compared: {why}" for why, n in unlike.items()]


def _columns(point: Point) -> Mapping[str, str]:
    """The columns of a table that tell its series apart."""
    columns: Mapping[str, str] = spec_of(point.series)["columns"]
    return columns


def _tested(pairs: Sequence[_Pair]) -> tuple[dict[str, Any], ...]:
    ratios = [rate_ratio(pair.fast.cost, pair.slow.cost) for pair in pairs]
    testable = [i for i, found in enumerate(ratios) if not found.missing]
    p = {i: ratios[i].p_value() for i in testable}
    corrected = dict(zip(testable, holm([p[i] for i in testable]), strict=True))
    rows = []
    for i, (pair, found) in enumerate(zip(pairs, ratios, strict=True)):
        row = pair.fast.row() | {"faster": _name(pair.fast), "slower": _name(pair.slow)}
        row |= dict(zip(("runs_faster", "runs_slower"), pair.runs, strict=True))
        row |= columns_of("ratio", found.interval(), basis=True)
        row |= {"p": p.get(i), "p_holm": corrected.get(i), "visible_factor": None}
        row["verdict"] = NOT_TESTED if i not in p else FASTER if corrected[i] < ALPHA else NOT_SHOWN
        if i in p:
            # At the level of Holm's first step, the strictest.
            visible = found.min_detectable_ratio(ALPHA / len(testable))
            row["visible_factor"] = visible if visible <= LARGEST_FACTOR else None
        row["marks"] = tuple(dict.fromkeys([*pair.fast.marks, *pair.slow.marks]))
        rows.append({**row, "sentence": f"{_where(pair.fast)}: {_verdict(row)}"})
    return tuple(rows)


def _where(point: Point) -> str:
    gpus = point.size
    return f"{gpus}, {point.work}, global batch {count(point.global_batch)}"


def _verdict(row: Mapping[str, Any]) -> str:
    if row["verdict"] == NOT_TESTED:
        return f"{row['faster']} and {row['slower']} were not tested: {row['ratio_basis']}"
    figures = (
        f"{times(row['ratio'])} (95 % interval {COLUMNS['ratio'].interval(row)}, from "
        f"{row['ratio_basis']}; corrected p {probability_text(row['p_holm'])}{_marks([row])})"
    )
    if row["verdict"] == FASTER:
        return f"{row['faster']} is faster than {row['slower']}: {figures}"
    return f"no difference shown between {row['faster']} and {row['slower']}: {figures}; {_visible(row)}{_few([row])}"


def _together(where: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """One sentence on several pairs of a place between which no difference was shown."""
    names = sorted({row[name] for row in rows for name in ("faster", "slower")})
    # Of the pair with the least power.
    weakest = max(rows, key=lambda row: row["visible_factor"] or LARGEST_FACTOR + 1)
    return (
        f"{where}: no difference shown in {len(rows)} pairs of {len(names)} series ({listed(names, 'and')}): at most "
        f"{times(max(row['ratio'] for row in rows))} (smallest corrected p "
        f"{probability_text(min(row['p_holm'] for row in rows))}{_marks(rows)}); "
        f"{'in every pair' if weakest['visible_factor'] else 'in some'} {_visible(weakest)}{_few(rows)}"
    )


def _marks(rows: Sequence[Mapping[str, Any]]) -> str:
    return "".join(f"; {mark}" for mark in (OVERSUBSCRIBED, IMPORTED) if any(mark in row["marks"] for row in rows))


def _few(rows: Sequence[Mapping[str, Any]]) -> str:
    fewest = min(row[name] for row in rows for name in ("runs_faster", "runs_slower"))
    return f"; below {ENOUGH_RUNS} runs hardly any can be" if fewest < ENOUGH_RUNS else ""


def _visible(row: Mapping[str, Any]) -> str:
    if row["visible_factor"] is None:
        return f"not even a factor of {LARGEST_FACTOR:g} would have been seen"
    least = percent(row["visible_factor"] - 1, 1)
    return f"a difference of {least} or more would have been seen with a probability of {percent(POWER)}"


def _name(point: Point) -> str:
    detail = f" [{point.other_detail}]" if point.other_detail else ""
    return f"{point.how}{detail}"


def _left_out(work_differs: int, single: int, repeatable: bool) -> list[str]:
    sentences = []
    if single:
        advice = f"; repeats={ENOUGH_RUNS} measures each point in so many jobs" if repeatable else ""
        sentences.append(
            f"{_pairs(single)} of series with the same work not compared: no test without 2 completed runs of each, "
            f"and little power below {ENOUGH_RUNS}{advice}"
        )
    if work_differs:
        sentences.append(f"{_pairs(work_differs)} of series not compared: their work differs")
    return sentences


def _pairs(n: int) -> str:
    return "1 pair" if n == 1 else f"{n:,} pairs"
