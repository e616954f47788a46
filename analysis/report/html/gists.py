"""One line per folded section of the page: what a reader finds there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from analysis.base.text import DASH, duration, percent, span
from analysis.measures.comparisons import FASTER
from analysis.measures.equal_work import differs
from analysis.read.study import statuses
from analysis.report.html.differences import Settings
from analysis.report.html.glance import Figure
from analysis.report.losses import LOSS_NAMES
from analysis.tables.point import Point

if TYPE_CHECKING:
    from analysis.measures.losses import Losses
    from analysis.report.findings import Findings


def gists_of(
    findings: Findings,
    n_series: int,
    glance: Sequence[Figure],
    settings: Sequence[Settings],
) -> dict[str, str]:
    """Summaries by the id of their section."""
    points, study = findings.points, findings.study
    figures = {figure.name: figure for figure in glance}
    rows = findings.comparisons.rows
    return {
        "series": f"{n_series:,} series: speedup with interval and baseline, efficiency, largest loss.",
        "glance": "; ".join(f"{figure.name}: {figure.value}" for figure in glance[:4]) + ".",
        "throughput": _best("Highest throughput", figures),
        "comparisons": f"{sum(row['verdict'] == FASTER for row in rows):,} of {_counted(len(rows), 'pair')} of series "
        "differ by a test."
        if rows
        else "No two series could be tested.",
        "published": f"{_counted(len(findings.published), 'published figure')} of the same work.",
        "breakdown": _losses(findings.losses),
        "learning": _best("Best test accuracy", figures),
        "cost": _best("Shortest epoch", figures),
        "prediction": "Efficiency expected at two, four and eight times the largest measured size.",
        "steadiness": _steadiness(points),
        "data": "Step time with real data and with synthetic data.",
        "failures": f"{_counted(len(findings.failure_costs), 'point')} with an injected fault.",
        "work": _work(findings),
        "resources": _resources(findings),
        "startup": _range("Until the first step", [row["total_seconds"] for row in findings.startup]),
        "roofline": "Step time beside the least that the device's measured rates allow.",
        "allreduce": _range("One message", [message.seconds for point in points for message in point.allreduce]),
        "staleness": _staleness(points),
        "measuring": _measuring(study.runs),
        "traces": "Files of the profilers.",
        "runs": "; ".join(f"{n:,} {status}" for status, n in sorted(statuses(study.runs).items())) + ".",
        "configuration": _differing(settings),
        "appendix": _appendix(findings),
    }


def _counted(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 or what.endswith('s') else 's'}"


def _best(name: str, figures: Mapping[str, Figure]) -> str:
    figure = figures.get(name)
    return f"{name}: {figure.value}, {figure.of}." if figure else ""


def _losses(losses: Losses) -> str:
    last = {loss.point.series: loss for loss in losses.points if loss.shares}
    if not last:
        return "Not known: no probes." if losses.lacking else "Parts of a step's time."
    largest = Counter(loss.largest.parts[0] for loss in last.values() if loss.largest is not None)
    if not largest:
        return "No loss can be told from 0."
    named = [f"{LOSS_NAMES[part]} ({n:,} of {len(last):,} series)" for part, n in largest.most_common(3)]
    return f"Largest loss, or largest estimate: {', '.join(named)}."


def _steadiness(points: Iterable[Point]) -> str:
    known = [point for point in points if point.blocks]
    blocks, outside = sum(point.blocks or 0 for point in known), sum(point.outlier_blocks or 0 for point in known)
    noted = sum(bool(point.notes) for point in known)
    share = percent(outside / blocks, 1) if blocks else DASH
    said = f"{share} of {blocks:,} blocks lie outside the fences"
    return f"{said}; {_counted(noted, 'point')} with a note." if noted else f"{said}; nothing to note."


def _work(findings: Findings) -> str:
    rows = findings.work.rows
    n = sum(differs(row) for row in rows)
    return (
        f"{n:,} of {len(rows):,} comparisons differ."
        if n
        else f"All {len(rows):,} comparisons are equal within bounds."
    )


def _resources(findings: Findings) -> str:
    energy = Counter(row["energy"] for row in findings.resources if row.get("energy"))
    kinds = ", ".join(f"{kind} at {_counted(n, 'point')}" for kind, n in sorted(energy.items()))
    return f"Energy: {kinds}; memory, GPUs, network and files." if kinds else "Memory, GPUs, network and files."


def _range(what: str, values: Iterable[float | None]) -> str:
    known = sorted(value for value in values if value is not None)
    if not known:
        return ""
    return (
        f"{what}: {duration(known[0])}." if known[0] == known[-1] else f"{what}: {span(known[0], known[-1], duration)}."
    )


def _staleness(points: Iterable[Point]) -> str:
    known = [point.staleness_max for point in points if point.staleness_max is not None]
    return f"Gradients were at most {_counted(max(known), 'update')} late." if known else ""


def _measuring(runs: Iterable[object]) -> str:
    stopped = Counter(str(getattr(run, "stopped", None)) for run in runs if getattr(run, "stopped", None) is not None)
    precise = stopped["precision"]
    total = sum(stopped.values())
    return (
        f"{precise:,} of {_counted(total, 'run')} ended because the mean step time was precise enough."
        if precise
        else (f"{_counted(total, 'run')}: warm-up, timed steps and probes of each.")
    )


def _differing(settings: Sequence[Settings]) -> str:
    configuration, environment = (len(half.differing) for half in settings)
    if not (configuration or environment):
        return "The same in all runs."
    return (
        f"{_counted(configuration, 'key')} of the configuration and {environment:,} of the environment differ "
        "between runs."
    )


def _appendix(findings: Findings) -> str:
    n = len(findings.study.problems) + len(findings.work.problems)
    return f"{_counted(n, 'problem') if n else 'No problem'} in reading; commands and versions."
