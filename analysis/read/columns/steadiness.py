"""Outlier blocks and drift of a run. Neither is removed from the figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.base.text import percent, probability_text
from analysis.read.log.packed import packed
from analysis.read.log.values import Block
from analysis.stats.stability import Trend, outliers, trend
from harness.core.measuring.precision import mean_error

DRIFT = "drift"


def steadiness_columns(blocks: Sequence[Block]) -> dict[str, Any]:
    """Return the columns from a run's measured blocks, in time order."""
    seconds, samples = [block.seconds for block in blocks], [block.samples for block in blocks]
    columns: dict[str, Any] = {"blocks": packed(blocks), "measured_blocks": len(blocks)}
    per_step = [block.seconds / block.n for block in blocks]
    columns["outlier_blocks"] = len(outliers(per_step))
    if found := trend([float(block.step) for block in blocks], per_step):
        columns |= {"drift": found.change, "drift_probability": found.p_value}
    if error := mean_error(seconds, samples):
        names = ("blocks_error", "blocks_freedom", "autocorrelation_times")
        columns |= dict(zip(names, error, strict=True))
    return columns


def run_notes(columns: Mapping[str, Any]) -> list[str]:
    """Return a note if the run's step times drift."""
    if columns.get("drift") is None:
        return []
    found = Trend(columns["drift"], columns["drift_probability"])
    return [f"{DRIFT}: {moved(found)} over its measured blocks"] if found.is_drift else []


def moved(found: Trend) -> str:
    """Return e.g. 'the step time rose by 3.1 % (Mann-Kendall, p 0.002)'."""
    verb = "rose" if found.change > 0 else "fell"
    p = probability_text(found.p_value)
    return f"the step time {verb} by {percent(abs(found.change), 1)} (Mann-Kendall, p {p})"
