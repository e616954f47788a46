"""Attainable rates of a run's devices, measured by the run itself (harness/worker/roofline_probe.py)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from analysis.base.text import printable
from analysis.base.values import number_of
from analysis.read.log.rank import RankLog


def ceiling_columns(ranks: Mapping[int, RankLog]) -> dict[str, Any]:
    """Return the column `ceilings` as JSON: {"flops", "bytes": per second on the slowest rank; "reason": why they are
    missing}. No column for logs that predate the probe."""
    events = [rank.ceiling for rank in ranks.values()]
    told = [event for event in events if event is not None]
    if not told or len(told) != len(events):
        return {}
    rates = {
        short: [number_of(event, name) for event in told]
        for short, name in (("flops", "flops_per_second"), ("bytes", "bytes_per_second"))
    }
    reasons = sorted({printable(str(event["reason"])) for event in told if event.get("reason")})
    least = {short: min(filter(None, values)) if all(values) else None for short, values in rates.items()}
    return {"ceilings": json.dumps({**least, "reason": "; ".join(reasons) or None})}
