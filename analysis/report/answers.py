"""Answers of a study, one per series: how far it scales, and where it loses most.

Page, PDF, proposal and terminal begin with the same sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.base.text import gpus_text, percent, span, times
from analysis.report.losses import largest_text
from analysis.report.sentences import is_own_baseline, ranged, sentence
from analysis.report.series_names import names_of
from analysis.tables.point import Point
from analysis.tables.series import Series, series_of
from analysis.tables.warnings import BASELINE_OVERSUBSCRIBED, OVERSUBSCRIBED
from harness.core.spec import EMULATED

if TYPE_CHECKING:
    from analysis.measures.losses import Loss, Losses


@dataclass(frozen=True)
class Answer:
    """One series in plain sentences.

    point: the largest measured point, the subject of the headline. name: name of the series, unique in the study.
    headline: "PyTorch DDP reaches 10.1× speedup (9.6–10.7) on 12 GPUs:
    84 % efficiency." loss: "The largest loss is exposed
    synchronisation, 9 %.", or that it cannot be told; None if no loss is told from 0. gaps: sizes without a figure;
    None: there are none. warning: why this is no scaling result; None: it is one. evidence: the headline with its
    baseline, the basis of its interval, and all warnings.
    """

    point: Point
    name: str
    headline: str
    loss: str | None
    gaps: str | None
    warning: str | None
    evidence: str

    @property
    def marks(self) -> tuple[str, ...]:
        return self.point.marks

    @property
    def text(self) -> str:
        """Everything on one line, with warnings."""
        marks = f" ({', '.join(self.marks)})." if self.marks else "."
        return " ".join(filter(None, (self.headline.removesuffix(".") + marks, self.loss, self.gaps, self.warning)))


def answers_of(points: Sequence[Point], losses: Losses) -> list[Answer]:
    """One answer per series with a measured point, in the order of the points."""
    lost: dict[str, Loss] = {}
    for loss in losses.points:
        if loss.shares:
            lost[loss.point.series] = loss  # the last: the largest
    shown = [series for series in series_of(points) if series.measured]
    names = names_of(points)
    return [_answer(series, names[series.key], lost.get(series.key)) for series in shown]


def _answer(series: Series, name: str, lost: Loss | None) -> Answer:
    point = series.measured[-1]
    return Answer(
        point=point,
        name=name,
        headline=_headline(point, name),
        loss=None if lost is None else _loss(lost, point),
        gaps=f"No figure for {series.gaps}." if series.gaps else None,
        warning=_warning(point),
        evidence=sentence(point),
    )


def _headline(point: Point, name: str) -> str:
    if is_own_baseline(point):
        rate = ranged(point.interval("samples_per_second"))
        return f"{name} trains {rate} {point.rate_unit} on {point.size}; no speedup to state."
    base = point.base_gpus
    relative = "" if base == 1 else f" relative to {gpus_text(base, point.device)}"
    interval = "" if point.speedup_low is None else f" ({span(point.speedup_low, point.speedup_high)})"
    speedup = f"{times(point.speedup)} speedup{interval}"
    return f"{name} reaches {speedup} on {point.size}{relative}: {percent(point.efficiency)} efficiency."


def _loss(loss: Loss, point: Point) -> str | None:
    said = largest_text(loss, lambda share: percent(share.estimate))
    if said is None:
        return None
    return f"{said[:1].upper()}{said[1:]}." if loss.point is point else f"On {loss.point.size}, {said}."


def _warning(point: Point) -> str | None:
    marks, said = point.marks, []
    if EMULATED in marks:
        said.append("Emulated: its costs were set, and nothing was computed.")
    if OVERSUBSCRIBED in marks:
        said.append(f"This is not a scaling result: {point.oversubscribed}.")
    elif BASELINE_OVERSUBSCRIBED in marks:
        said.append("This is not a scaling result: the point that it is relative to was oversubscribed.")
    return " ".join(said) or None
