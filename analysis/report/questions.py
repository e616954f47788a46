"""The first answers of a report: one sentence per question about the whole study.

`analysis.report.answers` has the answers per series.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.base.text import gpus_text, hours_unit, listed, number, percent
from analysis.measures.comparisons import FASTER, NOT_TESTED
from analysis.report.answers import Answer
from analysis.report.best import DOUBTFUL, worth
from analysis.report.sentences import is_own_baseline, ranged
from analysis.tables.point import Point

if TYPE_CHECKING:
    from analysis.report.findings import Findings
    from analysis.scaling.report_forecast import Forecast, Outlook

# Computing centres question lower efficiencies.
GOOD_EFFICIENCY = 0.7
MOST_NAMED = 3  # series named in one sentence


@dataclass(frozen=True)
class Reply:
    """question, answer: in one sentence each. marks: warnings of the points that the answer rests on. section: of the
    page, where it is explained."""

    question: str
    answer: str
    marks: tuple[str, ...]
    section: str


def replies_of(findings: Findings, answers: Sequence[Answer]) -> list[Reply]:
    """How far it scales, what limits it, what is fastest, and what the next size costs; empty if nothing was measured.

    answers: of the series of the findings (`answers_of`).
    """
    if not answers:
        return []
    best = best_answer(answers)
    return [
        _how_far(findings.points, answers, best),
        _limit(findings, answers, best),
        _fastest(findings, answers),
        _next_size(findings, answers, best),
    ]


def best_answer(answers: Sequence[Answer]) -> Answer:
    """The series with the largest speedup at its largest size, preferring those without serious warnings; without any
    speedup, the one with the highest throughput."""
    return max(answers, key=lambda answer: worth(answer.point))


def _how_far(points: Sequence[Point], answers: Sequence[Answer], best: Answer) -> Reply:
    question, own = "How far does it scale?", best.point
    if is_own_baseline(own):
        said = f"Not measured: no series has two sizes. {best.headline}"
        return Reply(question, said, best.marks, "scaling")
    several = f"Largest speedup of {len(answers)} series: " if len(answers) > 1 else ""
    said = f"{several}{best.headline}{_reach(points, own)}"
    return Reply(question, said, best.marks, "scaling")


def _reach(points: Sequence[Point], largest: Point) -> str:
    """Where the efficiency of the series falls below GOOD_EFFICIENCY; empty if it does not."""
    if (largest.efficiency or 0) >= GOOD_EFFICIENCY:
        return ""
    scaled = [point for point in points if point.series == largest.series and not is_own_baseline(point)]
    good = [point for point in scaled if (point.efficiency or 0) >= GOOD_EFFICIENCY]
    if len(scaled) == 1:
        return ""
    if not good:
        return f" No larger size reaches {percent(GOOD_EFFICIENCY)}."
    return f" Up to {max(good, key=lambda point: point.gpus).size} it is {percent(GOOD_EFFICIENCY)} or more."


def _limit(findings: Findings, answers: Sequence[Answer], best: Answer) -> Reply:
    question = "What limits it?"
    if best.loss is not None:
        said = f"{best.name}: {best.loss[:1].lower()}{best.loss[1:]}" if len(answers) > 1 else best.loss
        return Reply(question, said, best.marks, "breakdown")
    if is_own_baseline(best.point):
        return Reply(question, "Not known: it takes two sizes to see a loss.", (), "breakdown")
    if any(loss.point.series == best.point.series and loss.shares for loss in findings.losses.points):
        return Reply(question, "No loss can be told from 0.", best.marks, "breakdown")
    reasons = listed(findings.losses.lacking, "and") if findings.losses.lacking else "no probes"
    return Reply(question, f"Not known: {reasons}.", (), "breakdown")


def _fastest(findings: Findings, answers: Sequence[Answer]) -> Reply:
    """The fastest of the series that did the same work, at the largest size that most of them share."""
    question = "Which is fastest, and how sure is that?"
    names = {answer.point.series: answer.name for answer in answers}
    comparisons = findings.comparisons
    if len(answers) == 1:
        return Reply(question, "Only one series was measured.", (), "comparisons")
    if not comparisons.pairs:
        return Reply(question, *_untested(findings.points, names, comparisons.left_out), "comparisons")
    groups: dict[Point, list[int]] = {}  # rows by the fastest point of their group
    slower = {slow for _, slow in comparisons.pairs}
    for i, (fast, _) in enumerate(comparisons.pairs):
        if fast not in slower:
            groups.setdefault(fast, []).append(i)
    first = max(groups, key=lambda point: (not DOUBTFUL & set(point.marks), point.gpus, len(groups[point])))
    rows = groups[first]
    fact = f"On {first.size}: {names[first.series]}, at {number(first.rate)} {first.rate_unit}"
    sure = _verdict(
        Counter(comparisons.rows[i]["verdict"] for i in rows),
        [names[comparisons.pairs[i][1].series] for i in rows if comparisons.rows[i]["verdict"] != FASTER],
    )
    marks = tuple(dict.fromkeys(mark for i in rows for mark in comparisons.rows[i]["marks"]))
    return Reply(question, f"{fact}; {sure}.", marks, "comparisons")


def _verdict(verdicts: Mapping[str, int], others: Sequence[str]) -> str:
    """verdicts: number of the comparisons with the other series by their outcome. others: series that it is not shown
    to be faster than."""
    n = sum(verdicts.values())
    if not others:
        return "a test shows that it is faster than " + ("the other" if n == 1 else f"all {n} others")
    if verdicts[NOT_TESTED] == n:
        return "no test was possible"
    named = listed(others, "and") if len(others) <= MOST_NAMED else f"{len(others)} others"
    known = f"it is faster than {verdicts[FASTER]} of {n} others, but " if verdicts[FASTER] else ""
    return f"{known}no test shows a difference from {named}"


def _untested(
    points: Sequence[Point], names: Mapping[str, str], left_out: Sequence[str]
) -> tuple[str, tuple[str, ...]]:
    """The highest throughput among series that may have done the same work, and its warnings."""
    if not left_out:
        return "Not compared: no two series did the same work.", ()
    alike: dict[tuple[object, ...], list[Point]] = {}
    for point in points:
        if point.measured and point.series in names:
            work = (point.model, point.dataset, point.unit, point.gpus, point.global_batch)
            alike.setdefault(work, []).append(point)
    groups = [group for group in alike.values() if len(group) > 1]
    if not groups:
        return f"Not known: {left_out[0]}.", ()

    def worth(group: list[Point]) -> tuple[bool, bool, int]:
        return group[0].gpus > 1, not any(DOUBTFUL & set(point.marks) for point in group), group[0].gpus

    largest = max(groups, key=worth)
    first = max(largest, key=lambda point: point.rate)
    fact = f"On {first.size}: {names[first.series]} has the highest throughput, {number(first.rate)} {first.rate_unit}"
    return f"{fact}; whether by chance was not tested.", first.marks


def _next_size(findings: Findings, answers: Sequence[Answer], best: Answer) -> Reply:
    question = "What would the next size cost?"
    outlooks = {outlook.point.series: outlook for outlook in findings.outlook}
    outlook = outlooks.get(best.point.series) or next(iter(outlooks.values()), None)
    if outlook is None:
        return Reply(question, "Not predicted: no completed run.", (), "prediction")
    names = {answer.point.series: answer.name for answer in answers}
    name = names.get(outlook.point.series, outlook.point.name)
    following = _following(outlook)
    if following is None or following.rate is None:
        why = "; ".join(following.caveats) if following else outlook.why_not or "nothing was measured"
        return Reply(question, f"Not predicted: {why}.", outlook.marks, "prediction")
    return Reply(question, _expected(outlook, following, name, _costs(findings)), outlook.marks, "prediction")


def _following(outlook: Outlook) -> Forecast | None:
    if outlook.why_not is not None:
        return None
    return next((one for one in outlook.forecasts if one.measured is None and one.gpus > outlook.largest), None)


def _costs(findings: Findings) -> Mapping[tuple[str, int], float]:
    """GPU-hours of an epoch by series and number of GPUs, as measured."""
    return {
        (row["point"].series, row["point"].gpus): row["epoch_gpu_hours"]
        for row in findings.decisions
        if row["epoch_gpu_hours"] is not None
    }


def _expected(outlook: Outlook, one: Forecast, name: str, costs: Mapping[tuple[str, int], float]) -> str:
    assert one.rate is not None
    point = outlook.point
    rate = one.rate.central90
    said = f"On {gpus_text(one.gpus, point.device)}, {name} is expected to reach "
    if one.efficiency is not None:
        said += f"{ranged(one.efficiency, percent)} efficiency, that is "
    said += f"{number(rate.estimate)} {point.rate_unit}"
    if one.epoch_gpu_hours is not None:
        now = costs.get((point.series, outlook.largest))
        hours = hours_unit(point.device)
        said += f"; an epoch would cost {number(one.epoch_gpu_hours)} {hours}"
        if now is not None:
            said += f", {number(now)} on {gpus_text(outlook.largest, point.device)}"
    return f"{said} (90 % prediction interval)."
