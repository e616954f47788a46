"""Tables for papers (scaling, breakdown, decisions, accuracy), with warnings and what they were measured on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from analysis.base.column import Column
from analysis.base.numbers import common
from analysis.base.text import DASH, count, duration, hours_unit, percent, shortened, span
from analysis.measures import decisions
from analysis.measures.learning import POINT_COLUMNS as LEARNED
from analysis.measures.losses import Loss
from analysis.report.losses import PART_COLUMNS, part_text, parts_shown, tenths
from analysis.report.print.document import Footnotes, Group, Header, Line, Table
from analysis.report.print.latex import tables_tex
from analysis.report.sentences import baseline, sample_notes, seeds_text, target_text, unit_of
from analysis.tables.columns import CONFIDENCE_INTERVAL, POINT, SPREAD
from analysis.tables.point import Point
from analysis.tables.series import by_series, rate_column
from analysis.tables.warnings import OVERSUBSCRIBED
from harness.core.spec import EMULATED

if TYPE_CHECKING:
    from analysis.report.findings import Findings

FIGURES = tuple(POINT[name] for name in ("samples_per_second", "speedup", "efficiency"))
SERIAL, MARGINAL = decisions.COLUMNS["serial_fraction"], decisions.COLUMNS["marginal_efficiency"]
Row = Mapping[str, Any]  # about a point
MOST_REASON, MOST_WORDS = 300, 400  # characters: reason of a failure; description of the measurement
MARK_WORDS = {
    OVERSUBSCRIBED: "oversubscribed: ranks shared cores or GPUs, not a scaling result",
    EMULATED: "emulated: its costs were set, not found",
    "single run": "a single run: its interval says how steady it was, not what another run would give",
}


def paper_tables(findings: Findings) -> list[Table]:
    """Return the tables that have rows."""
    tables = [scaling_table(findings), breakdown_table(findings), decisions_table(findings), accuracy_table(findings)]
    return [table for table in tables if table.groups]


def tex_of(findings: Findings) -> dict[str, bytes]:
    """Return tables.tex, in ASCII."""
    return {"tables.tex": tables_tex(paper_tables(findings), findings.study.name).encode("ascii")}


def measured_on(points: Sequence[Point]) -> str:
    """List all devices, clusters, communication libraries, versions and code versions of the points."""

    def every(values: Iterable[str | None]) -> str:
        return shortened(" / ".join(dict.fromkeys(filter(None, values))), MOST_WORDS)

    code = every(version for point in points for version in point.code_versions)
    cluster = every(point.cluster for point in points)
    parts = [
        every(name for point in points for name in point.device_names) or every(point.device for point in points),
        f"cluster {cluster}" if cluster else "",
        every(point.communication for point in points),
        every(point.versions for point in points),
        f"code {code}" if code else "",
    ]
    stated = "; ".join(filter(None, parts))
    return f"Measured on {stated}." if stated else "Imported; on what it was measured is not stated."


def mark_words(point: Point) -> list[str]:
    """Return the warnings of a point as footnote texts."""
    return [MARK_WORDS.get(mark, mark) for mark in point.marks]


def scaling_table(findings: Findings) -> Table:
    """Throughput, speedup and efficiency of every point, including those without a result."""
    points = findings.points
    footnotes = Footnotes()
    what = unit_of(points)
    headings = [
        *(what, POINT["nodes"].heading, POINT["global_batch"].heading),
        *(
            heading
            for column in (rate_column(points), *FIGURES[1:])
            for heading in (column.heading, CONFIDENCE_INTERVAL.short)
        ),
        POINT["runs_completed"].heading,
    ]
    groups = [
        Group(_heading(group), [_scaling_cells(point, footnotes) for point in group]) for group in by_series(points)
    ]
    caption = (
        f"Scaling in study {findings.study.name}: throughput, speedup and parallel efficiency. {measured_on(points)}"
    )
    notes = [("", note) for note in sample_notes(points)]
    return Table("scaling", caption, _columns(headings), groups, [*footnotes.notes, *notes])


def _scaling_cells(point: Point, footnotes: Footnotes) -> list[Line]:
    first: Line = (count(point.gpus), *footnotes.raised(*mark_words(point)))
    if not point.measured:
        reason = shortened(f"no figure: {point.status}: {point.reasons or 'no reason given'}", MOST_REASON)
        cell: Line = (count(point.gpus), *footnotes.raised(reason))
        return [cell, (count(point.nodes),), (count(point.global_batch),), *[(DASH,)] * 6, _runs(point)]
    figures = (cell for column in FIGURES for cell in ((column.text(point),), _interval(point, column, footnotes)))
    return [first, (count(point.nodes),), (count(point.global_batch),), *figures, _runs(point)]


def _runs(point: Point) -> Line:
    done, asked = point.runs_completed, point.runs_all
    return (count(done) if done == asked else f"{count(done)} of {count(asked)}",)


def _interval(point: Point, column: Column, footnotes: Footnotes) -> Line:
    basis = column.value(point, "basis")
    if column.value(point, "low") is None:
        return (DASH, *footnotes.raised(basis))
    return (column.interval(point), *footnotes.raised(f"95 % interval from {basis}"))


def breakdown_table(findings: Findings) -> Table:
    """Seconds of each part of a step and, below them, the resulting loss of efficiency."""
    found = [loss for loss in findings.losses.points if loss.parts is not None]
    parts = parts_shown(found)
    columns = [POINT["step_seconds"], POINT["efficiency"], *(PART_COLUMNS[part] for part in parts)]
    headings = [unit_of([loss.point for loss in found]), *(column.heading for column in columns)]
    footnotes = Footnotes()
    groups = [
        Group(
            _heading([loss.point for loss in group]),
            [row for loss in group for row in _parts_rows(loss, parts, footnotes)],
        )
        for group in by_series(found)
    ]
    caption = (
        f"Where the time of a step went in study {findings.study.name}: seconds of each part, and below them what it "
        f"cost in efficiency, with 95 % intervals. {measured_on([loss.point for loss in found])}"
    )
    return Table("breakdown", caption, _columns(headings), groups, footnotes.notes)


def _parts_rows(loss: Loss, parts: Sequence[str], footnotes: Footnotes) -> list[list[Line]]:
    point = loss.point
    assert loss.parts is not None
    basis = f"95 % intervals from {loss.basis}" if loss.basis else None
    seconds: list[Line] = [
        (count(point.gpus), *footnotes.raised(*mark_words(point), basis)),
        (duration(loss.parts.step_seconds),),
        (percent(point.efficiency),),
        *((part_text(loss.parts.seconds.get(part)),) for part in parts),
    ]
    if not loss.shares:
        return [seconds]
    shares = [loss.shares.get(part) for part in parts]
    spans = ["" if share is None else f"({span(share.low, share.high, tenths)})" for share in shares]
    return [
        seconds,
        [(), (), (), *((DASH if share is None else tenths(share.estimate),) for share in shares)],
        [(), (), (), *((text,) for text in spans)],
    ]


def decisions_table(findings: Findings) -> Table:
    """What each increase in GPUs gained, and the time and cost of an epoch."""
    rows = findings.decisions
    points = [row["point"] for row in rows]
    footnotes = Footnotes()
    hours = _hours(points)
    headings = [
        *(unit_of(points), SERIAL.heading, CONFIDENCE_INTERVAL.short, MARGINAL.short, CONFIDENCE_INTERVAL.short),
        *("Epoch", f"{hours[:1].upper()}{hours[1:]} per epoch", decisions.COLUMNS["epoch_front"].heading),
    ]
    groups = [
        Group(_heading([row["point"] for row in group]), [_decision_cells(row, footnotes) for row in group])
        for group in by_series(rows)
    ]
    caption = (
        f"What each number of {unit_of(points)} gave and cost in study {findings.study.name}: serial fraction of Karp "
        "and Flatt; marginal efficiency, the throughput that was added beyond the next smaller size, relative to "
        "one's; an epoch's steps alone; whether no other point of the same work takes both less time and less cost. "
        f"{measured_on(points)}"
    )
    return Table("decisions", caption, _columns(headings), groups, footnotes.notes)


def _decision_cells(row: Row, footnotes: Footnotes) -> list[Line]:
    return [
        (count(row["point"].gpus), *footnotes.raised(*mark_words(row["point"]))),
        (SERIAL.text(row), *footnotes.raised(row["serial_fraction_reason"])),
        *((SERIAL.interval(row),), (MARGINAL.text(row),), (MARGINAL.interval(row),)),
        (duration(row["epoch_seconds"]),),
        (decisions.COLUMNS["epoch_gpu_hours"].text(row),),
        ({True: "yes", False: "no"}.get(row["epoch_front"], DASH),),
    ]


def accuracy_table(findings: Findings) -> Table:
    """Accuracy of the points and, with a target, the time and cost to reach it."""
    learning = findings.learning
    rows = learning.points
    points = [row["point"] for row in rows]
    footnotes = Footnotes()
    accuracy, *others = (LEARNED[name].heading for name in ("accuracy", "seeds", "loss", "epochs"))
    headings = [unit_of(points), POINT["global_batch"].heading, accuracy, SPREAD.heading, *others]
    if learning.target is not None:
        hours = _hours(points)
        headings += [
            f"To {percent(learning.target, 1)}",
            LEARNED["to_train_seconds"].short,
            f"{hours[:1].upper()}{hours[1:]}",
        ]
    groups = [
        Group(
            _heading([row["point"] for row in group]),
            [_accuracy_cells(row, learning.target, footnotes) for row in group],
        )
        for group in by_series(rows)
    ]
    caption = (
        f"Accuracy in study {findings.study.name}, at each run's last evaluation: mean and range of the seeds. "
        f"{measured_on(points)}"
    )
    notes = [("", note) for note in sample_notes(points)]
    return Table("accuracy", caption, _columns(headings), groups, [*footnotes.notes, *notes])


def _accuracy_cells(row: Row, target: float | None, footnotes: Footnotes) -> list[Line]:
    cells: list[Line] = [
        (count(row["point"].gpus), *footnotes.raised(*mark_words(row["point"]))),
        (count(row["point"].global_batch),),
        (LEARNED["accuracy"].text(row),),
        (LEARNED["accuracy"].interval(row),),
        (count(row["seeds"]), *footnotes.raised(seeds_text(row))),
        (LEARNED["loss"].text(row),),
        (LEARNED["epochs"].text(row),),
    ]
    if target is not None:
        cells += [(target_text(row),), *((LEARNED[name].text(row),) for name in ("to_train_seconds", "to_gpu_hours"))]
    return cells


def _columns(headings: Sequence[str]) -> list[Header]:
    return [Header(heading, right=number > 0) for number, heading in enumerate(headings)]


def _heading(group: Sequence[Point]) -> str:
    """Return the name of the series and the baseline of its speedups."""
    bases = [baseline(point) for point in group if point.measured]
    return group[0].series_name + (f"; relative to {bases[0]}" if bases else "")


def _hours(points: Sequence[Point]) -> str:
    return common(hours_unit(point.device) for point in points) or "GPU- or rank-hours"
