"""report.pdf: a study's results on paper. Answers first, then figures, tables, method and problems."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from analysis.base.text import moment, shortened
from analysis.measures.comparisons import COMPARISON_NOTE
from analysis.measures.data_price import price_sentences
from analysis.measures.decisions import front_sentences
from analysis.read.study import statuses
from analysis.report.answers import Answer, answers_of
from analysis.report.best import worth
from analysis.report.failures import FAILURES_NOTE
from analysis.report.losses import BREAKDOWN_NOTE, lacking_sentences, loss_sentences
from analysis.report.print.document import Block, Bullets, Heading, Paragraph, Picture
from analysis.report.print.drawing import rendered
from analysis.report.print.figures import PAPER, figure_specs
from analysis.report.print.tables import measured_on, paper_tables
from analysis.report.print.typst import pdf_of_blocks
from analysis.report.sentences import (
    GOODPUT_NOTE,
    LEARNING_NOTE,
    accuracy_notes,
    interval_note,
    left_out,
    sample_notes,
    steadiness_lines,
    unit_of,
)
from analysis.tables.warnings import OVERSUBSCRIBED
from harness.core.spec import EMULATED

if TYPE_CHECKING:
    from analysis.report.findings import Findings

MOST_ANSWERS = 12  # report.html has all
MOST_REASON = 400  # length limit of reasons for missing results
CAPTIONS = {
    "speedup": "Speedup over the number of {unit}.",
    "efficiency": "Parallel efficiency over the number of {unit}.",
    "efficiency_each": "Parallel efficiency of each series over the number of {unit}.",
    "accuracy_by_samples": "Test accuracy over the samples of training.",
    "accuracy_by_seconds": "Test accuracy over the seconds of training.",
    "waterfall": "From 100 % efficiency to the measured one, loss by loss.",
    "losses": "What each part of a step takes away from 100 % efficiency.",
    "block_times": "Step time of each measured block.",
}


def pdf_of(findings: Findings) -> dict[str, bytes]:
    """Return report.pdf."""
    specs = figure_specs(findings, PAPER)
    blocks = blocks_of(findings, specs)
    names = [block.name for block in blocks if isinstance(block, Picture)]
    pictures = {name: rendered(specs[name], ("pdf",), PAPER.width_mm)["pdf"] for name in names}
    study, rows = findings.study, findings.points
    subtitle = f"{moment(study.created)}. {measured_on(rows)}" if rows else moment(study.created)
    return {"report.pdf": pdf_of_blocks(study.name, subtitle, study.created, blocks, pictures)}


def blocks_of(findings: Findings, figures: Iterable[str]) -> list[Block]:
    """Return the contents of report.pdf. figures: names of the available figures."""
    answers = _ranked(findings)
    blocks = _answers(findings, answers)
    what = unit_of(findings.points)
    if "losses" in figures:  # of many series, one bar each in place of a waterfall each
        figures = [name for name in figures if not name.startswith("waterfall")]
    for kind, caption in CAPTIONS.items():
        names = [name for name in figures if re.fullmatch(rf"{kind}(_\d+)?", name)]
        blocks += [Picture(name, caption.format(unit=what)) for name in names]
    if tables := paper_tables(findings):
        blocks += [Heading("Tables"), *tables]
    return [
        *blocks,
        *_section("Basis of the answers", _evidence(findings, answers)),
        *_section("What else was found", _further(findings)),
        Heading("Method in short"),
        *(Paragraph((note,)) for note in _notes(findings)),
        *_runs(findings),
        *_section("Problems", [*findings.study.problems, *findings.work.problems, *left_out(findings.study)]),
    ]


def _ranked(findings: Findings) -> list[Answer]:
    """The answers; if not all have a place, the best first, unless the user has chosen an order."""
    answers = answers_of(findings.points, findings.losses)
    if len(answers) > MOST_ANSWERS and not any(point.shown for point in findings.points):
        return sorted(answers, key=lambda answer: worth(answer.point), reverse=True)
    return answers


def _answers(findings: Findings, answers: Sequence[Answer]) -> list[Block]:
    sentences = [answer.text for answer in answers]
    marks = {mark for point in findings.points for mark in point.marks}
    blocks: list[Block] = []
    if OVERSUBSCRIBED in marks:
        reasons = sorted({point.oversubscribed for point in findings.points if point.oversubscribed})
        blocks.append(
            Paragraph(
                (f"Not all of this is a scaling result. Oversubscribed: {shortened('; '.join(reasons), 300)}.",), True
            )
        )
    if EMULATED in marks:
        blocks.append(Paragraph(("Some figures are emulated: their costs were set, and nothing was computed.",), True))
    if not sentences:
        blocks.append(Paragraph(("No run of this study has completed: there is no figure to report.",), True))
    return [*blocks, *_answer_lines(sentences)]


def _evidence(findings: Findings, answers: Sequence[Answer]) -> list[str]:
    """List the answers with their baselines, the bases of their intervals, and all warnings."""
    place = {answer.point.series: i for i, answer in enumerate(answers)}
    # In the order of the answers, so that what stands there for lack of space is on the same series.
    losses = sorted(findings.losses.points, key=lambda loss: place[loss.point.series])
    said = loss_sentences(replace(findings.losses, points=tuple(losses)))
    return [*_first([answer.evidence for answer in answers]), *_first(said)]


def _further(findings: Findings) -> list[str]:
    costs = [*findings.failure_costs, FAILURES_NOTE] if findings.failure_costs else []
    published = [f"published: {both.published}; this study: {both.own}; {both.verdict}" for both in findings.published]
    return [
        *_first(findings.comparisons.sentences),
        *front_sentences(findings.decisions),
        *price_sentences(findings.prices),
        *published,
        *_first(steadiness_lines(findings.points)),
        *costs,
    ]


def _notes(findings: Findings) -> list[str]:
    notes = [interval_note(findings.points), GOODPUT_NOTE]
    if any(loss.parts for loss in findings.losses.points):
        notes.append(BREAKDOWN_NOTE)
    if findings.comparisons.rows:
        notes.append(COMPARISON_NOTE)
    if findings.learning.points:
        notes.append(LEARNING_NOTE)
    return [*notes, *sample_notes(findings.points), *accuracy_notes(findings.points)]


def _runs(findings: Findings) -> list[Block]:
    """Describe how the runs ended, with reasons for those without a result."""
    study = findings.study
    ended = ", ".join(f"{n:,} {status}" for status, n in sorted(statuses(study.runs).items()))
    others = [run for run in study.runs if not run.completed]
    lines = [f"{run.run_id}: {run.status}: {shortened(run.reason or 'no reason given', MOST_REASON)}" for run in others]
    lines += lacking_sentences(findings.losses, len(study.runs))
    return [
        Heading("Runs"),
        Paragraph((f"{len(study.runs):,} runs: {ended}.",)),
        *([Bullets([(line,) for line in lines])] if lines else []),
    ]


def _section(title: str, sentences: Sequence[str]) -> list[Block]:
    return [Heading(title), Bullets([(sentence,) for sentence in sentences])] if sentences else []


def _answer_lines(sentences: Sequence[str]) -> list[Block]:
    return [Bullets([(sentence,) for sentence in _first(sentences)], answers=True)] if sentences else []


def _first(sentences: Sequence[str]) -> list[str]:
    """As many as have a place on paper, and how many there are elsewhere."""
    more = len(sentences) - MOST_ANSWERS
    return [*sentences[:MOST_ANSWERS], *([f"and {more:,} more, in report.html"] if more > 0 else [])]
