"""The key figures of a study."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from analysis.base.text import duration, energy, hours_unit, number, percent, span
from analysis.report.best import DOUBTFUL
from analysis.report.questions import GOOD_EFFICIENCY
from analysis.report.sentences import is_own_baseline
from analysis.stats.intervals import Interval
from analysis.tables.point import Point

if TYPE_CHECKING:
    from analysis.report.findings import Findings


@dataclass(frozen=True)
class Figure:
    """name: what it is. value: with unit. of: the point where it was measured. marks: warnings of that point."""

    name: str
    value: str
    of: str
    marks: Sequence[str]


def figures_at_a_glance(findings: Findings, names: Mapping[str, str]) -> list[Figure]:
    """The best point for each figure, preferring points without serious warnings; skips figures that no point has.

    names: of the series, as in the answers.
    """
    scaled = [point for point in findings.points if point.measured and not is_own_baseline(point)]
    efficient = [point for point in scaled if (point.efficiency or 0) >= GOOD_EFFICIENCY]

    def best(
        name: str,
        found: Iterable[tuple[Point, Interval | None]],
        show: Callable[[Point, float], str],
        ends: Callable[[float | None], str] = number,
        low: bool = False,
    ) -> list[Figure]:
        known = [(point, value) for point, value in found if value is not None]
        sound = [(point, value) for point, value in known if not DOUBTFUL & set(point.marks)] or known
        if not sound:
            return []
        point, value = (min if low else max)(sound, key=lambda one: (one[1].estimate, one[0].efficiency or 0))
        interval = "" if value.low is None else f" ({span(*value.ends, ends)})"
        of = f"{point.size}{interval}, {names[point.series]}"
        return [Figure(name, show(point, value.estimate), of, point.marks)]

    def of_points(figure: str) -> list[tuple[Point, Interval | None]]:
        return [(point, point.interval(figure)) for point in findings.points]

    def of_rows(rows: Iterable[Mapping[str, Any]], figure: str) -> list[tuple[Point, Interval | None]]:
        known = [row for row in rows if row.get(figure) is not None]
        return [
            (row["point"], Interval(row[figure], row.get(f"{figure}_low"), row.get(f"{figure}_high"))) for row in known
        ]

    hours = hours_unit(findings.points[0].device) if findings.points else ""
    gpus = "ranks" if hours == "rank-hours" else "GPUs"
    return [
        *best("Largest speedup", [(p, p.interval("speedup")) for p in scaled], lambda _, value: f"{number(value)}×"),
        *best(
            f"Most {gpus} at {percent(GOOD_EFFICIENCY)} efficiency or more",
            [(point, Interval(point.gpus)) for point in efficient],
            lambda point, _: f"{point.gpus:,} at {percent(point.efficiency)}",
        ),
        *best(
            "Highest throughput",
            of_points("samples_per_second"),
            lambda point, value: f"{number(value)} {point.rate_unit}",
        ),
        *best(
            "Shortest epoch",
            of_rows(findings.decisions, "epoch_seconds"),
            lambda _, value: duration(value),
            low=True,
        ),
        *best(
            f"Fewest {hours} per epoch",
            of_rows(findings.decisions, "epoch_gpu_hours"),
            lambda _, value: number(value),
            low=True,
        ),
        *best(
            "Least energy per sample",
            of_rows(findings.resources, "joules_per_sample"),
            lambda _, value: energy(value),
            low=True,
        ),
        *best("Best test accuracy", of_points("test_accuracy"), lambda _, value: percent(value, 1), percent),
    ]
