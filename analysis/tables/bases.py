"""Intervals as columns of a table, with their basis in words."""

from __future__ import annotations

from typing import Any

from analysis.stats.intervals import Interval, Missing
from harness.core.measuring.precision import FEWEST

ONE_RUN = "blocks of one run"


def basis_text(interval: Interval) -> str:
    """Return e.g. '4 runs and 3 runs', '3 runs each', 'no interval: the 3 runs are alike to the last digit'."""
    if interval.reason:
        return f"no interval: {'; '.join(map(_why, interval.reason))}"
    texts = [ONE_RUN if runs == 1 else f"{runs} runs" for runs in interval.basis]
    distinct = list(dict.fromkeys(texts))
    if len(distinct) < len(texts) and distinct != [ONE_RUN]:
        return f"{distinct[0]} each"
    return " and ".join(distinct)


def columns_of(name: str, interval: Interval | None, basis: bool = False) -> dict[str, Any]:
    """Return `name`, `name`_low and `name`_high; with basis also `name`_basis."""
    estimate, low, high = (None, None, None) if interval is None else interval[:3]
    columns: dict[str, Any] = {name: estimate, f"{name}_low": low, f"{name}_high": high}
    return columns | {f"{name}_basis": basis_text(interval)} if basis and interval is not None else columns


def _why(missing: Missing) -> str:
    if missing.blocks == 0:
        return "a single measurement"
    if missing.blocks is not None:
        return f"{missing.blocks} block{'s' * (missing.blocks != 1)} of one run, {FEWEST} are needed"
    return f"the {ONE_RUN if missing.runs == 1 else f'{missing.runs} runs'} are alike to the last digit"
