"""The figures in plain sentences, the same in the terminal and in the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from analysis.metrics import BASELINE_OVERSUBSCRIBED, OVERSUBSCRIBED
from analysis.text import gpus_text, number, percent, span, times

SPREAD_NOTE = (
    "Spread: smallest to largest of the runs of a point; with a single run, 5th to 95th percentile of its blocks. "
    "Ranges of speedup and efficiency join the ends of both spreads: they are no confidence intervals, for which a "
    "point has to be repeated."
)

GOODPUT_NOTE = (
    "Goodput: seconds of the steps that count by the seconds from begin to end of every attempt, start-up, evaluation, "
    "probes, checkpoints and lost steps included; not the time in the queue."
)


def headlines(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """One sentence per series, on its largest measured point. The points come ordered by series, then by GPUs."""
    sentences = []
    for _, group in groupby(points, key=lambda point: point["series"]):
        measured: list[Mapping[str, Any]] = []
        lacking: list[Mapping[str, Any]] = []
        for point in group:
            (lacking if point["samples_per_second"] is None else measured).append(point)
        if measured:
            without = [f"{gpus_text(point['gpus'], point['device'])} ({point['status']})" for point in lacking]
            gaps = f" No figure for {', '.join(without)}." if without else ""
            sentences.append(sentence(measured[-1]) + gaps)
    return sentences


def sentence(point: Mapping[str, Any]) -> str:
    """What the point shows, with all its marks; for an oversubscribed one, that it is no scaling result and why."""
    gpus = gpus_text(point["gpus"], point["device"])
    name = point["label"] + (f" [{point['detail']}]" if point["detail"] else "")
    marks = marks_of(point)
    if point["gpus"] == point["relative_to_gpus"]:
        rate = f"{number(point['samples_per_second'])} samples/s on {gpus}"
        text = f"{name}: {rate}; no speedup to state, one number of {unit(point['device'])} was measured"
        remarks = marks
    else:
        base = gpus_text(point["relative_to_gpus"], point["device"])
        text = f"{name}: {times(point['speedup'])} on {gpus} relative to {base}"
        text += f", {percent(point['efficiency'])} efficiency"
        low, high = point["efficiency_low"], point["efficiency_high"]
        stated = f"range {span(low, high, percent)}, from {_basis(point)}" if low is not None else "range unknown"
        remarks = [stated, *marks]
    if remarks:
        text += f" ({'; '.join(remarks)})"
    if OVERSUBSCRIBED in marks:
        return f"{text}. This is not a scaling result: {point['oversubscribed']}."
    if BASELINE_OVERSUBSCRIBED in marks:
        return f"{text}. This is not a scaling result: the point that it is relative to was oversubscribed."
    return f"{text}."


def marks_of(point: Mapping[str, Any]) -> list[str]:
    """The marks of a point, as a list."""
    return point["marks"].split(";") if point["marks"] else []


def unit(device: str | None) -> str:
    """What is counted: GPUs, or ranks on a CPU machine."""
    return "CPU ranks" if device == "cpu" else "GPUs"


def _basis(point: Mapping[str, Any]) -> str:
    return "the blocks of single runs" if point["spread_basis"] == "blocks of one run" else point["spread_basis"]
