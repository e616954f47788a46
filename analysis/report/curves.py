"""Test accuracy over the samples and over the seconds of training: what the curves of a point are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

# The quantity on the x axis, and its label.
CURVES = {
    "accuracy_by_samples": ("samples", "training samples, all GPUs together"),
    "accuracy_by_seconds": ("train_seconds", "seconds of training, without evaluations"),
}


class Spot(NamedTuple):
    """One evaluation of a point: the means over its runs, and the smallest and the largest accuracy."""

    x: float
    accuracy: float
    low: float
    high: float


def spots(curves: Sequence[Sequence[Mapping[str, Any]]], quantity: str) -> list[Spot]:
    """The evaluations that all runs of a point have, after equal numbers of samples; those whose x is known."""
    found = []
    for samples in sorted({row["samples"] for curve in curves for row in curve}):
        rows = [row for curve in curves for row in curve if row["samples"] == samples]
        xs = [row[quantity] for row in rows if row[quantity] is not None]
        if len(rows) == len(xs) == len(curves):
            accuracies = [row["accuracy"] for row in rows]
            found.append(Spot(fmean(xs), fmean(accuracies), min(accuracies), max(accuracies)))
    return found
