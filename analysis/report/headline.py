"""The main results of a study as texts, the most important first; `analysis.report.answers` has the wording."""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis.base.text import printable
from analysis.report.answers import Answer, answers_of
from analysis.report.best import worth
from analysis.report.sentences import is_own_baseline
from analysis.tables.series import series_of

if TYPE_CHECKING:
    from analysis.report.findings import Findings


def headline_sentences(findings: Findings) -> list[str]:
    """One text per series: series with a speedup first, then those that are no scaling result, those with only a
    throughput, and those without figures. In each group the largest speedup is first, or what the user put first."""
    answers = answers_of(findings.points, findings.losses)
    if not any(point.shown for point in findings.points):
        answers = sorted(answers, key=lambda answer: worth(answer.point), reverse=True)
    answers = sorted(answers, key=_rank)
    said = [answer.text for answer in answers]
    unmeasured = (series for series in series_of(findings.points) if not series.measured)
    said += [f"{series.first.name}: no figure for {series.gaps}." for series in unmeasured]
    return [printable(text) for text in said]


def _rank(answer: Answer) -> int:
    if is_own_baseline(answer.point):
        return 2
    return 0 if answer.warning is None else 1
