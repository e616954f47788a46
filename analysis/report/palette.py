"""Colours and shapes of series, the same in every chart.

The colours are those of Okabe and Ito (2008), distinguishable to the colour-blind; no chart relies on colour alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from analysis.measures.breakdown import BUCKETING, COMPUTE, DATA, IMBALANCE, SYNCHRONISATION, UNDIVIDED, UNEXPLAINED
from analysis.tables.warnings import OVERSUBSCRIBED, SINGLE_RUN
from harness.core.spec import EMULATED


@dataclass(frozen=True)
class Look:
    """colour: on white; dark: on a dark page. shape: Vega's name or an SVG path."""

    colour: str
    dark: str
    shape: str


CROSS = "M-.35,-1L.35,-1L.35,-.35L1,-.35L1,.35L.35,.35L.35,1L-.35,1L-.35,.35L-1,.35L-1,-.35L-.35,-.35Z"
# An X and a star, which Vega does not offer, as SVG paths within [-1, 1].
EX = "M-1,-.6L-.6,-1L0,-.4L.6,-1L1,-.6L.4,0L1,.6L.6,1L0,.4L-.6,1L-1,.6L-.4,0Z"
STAR = "M0,-1L.26,-.36L.95,-.31L.42,.14L.59,.81L0,.44L-.59,.81L-.42,.14L-.95,-.31L-.26,-.36Z"

# Looks of the series, in the order of `analysis.tables.series.series_in_order`.
LOOKS = (
    Look("#0072B2", "#4AA3DF", "circle"),
    Look("#D55E00", "#F0803C", "square"),
    Look("#009E73", "#2FBF95", "triangle-up"),
    Look("#CC79A7", "#DD93BB", "diamond"),
    Look("#E69F00", "#F0B429", "triangle-down"),
    Look("#56B4E9", "#8CCBF2", CROSS),
    Look("#000000", "#F3F4F6", EX),
    Look("#7A4E9E", "#B08AD0", STAR),
)
UNNAMED = Look("#B4B9C0", "#5B626D", "circle")  # series beyond the eighth
IDEAL = Look("#6B7280", "#9CA3AF", "circle")  # references: ideal lines, targets

# The parts of a step, and of lost efficiency.
PARTS = {
    COMPUTE: Look("#CC79A7", "#DD93BB", ""),
    UNDIVIDED: Look("#56B4E9", "#8CCBF2", ""),
    SYNCHRONISATION: Look("#0072B2", "#4AA3DF", ""),
    BUCKETING: Look("#D55E00", "#E8834A", ""),
    IMBALANCE: Look("#009E73", "#2FBF95", ""),
    DATA: Look("#E69F00", "#F0B429", ""),
    UNEXPLAINED: Look("#7A4E9E", "#B08AD0", ""),
}

# Points with these warnings are drawn hollow: not a scaling result, or of unknown spread.
HOLLOW = (OVERSUBSCRIBED, EMULATED, SINGLE_RUN)


def is_hollow(marks: Iterable[str]) -> bool:
    return any(mark in HOLLOW for mark in marks)


def hollow_notes(marks_of_points: Iterable[Iterable[str]]) -> list[str]:
    """Return ['hollow: oversubscribed or single run'], naming the marks that occur; [] if none does."""
    marks = {mark for marks in marks_of_points for mark in marks}
    found = [mark for mark in HOLLOW if mark in marks]
    return [f"hollow: {' or '.join(found)}"] if found else []
