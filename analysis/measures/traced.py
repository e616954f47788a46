"""The parts of a step in the traces that PyTorch's profiler took of a run (docs/breakdown.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from analysis.base.text import duration

# In the order of the sentence; they add up to the step.
NAMES = {
    "compute": "computation",
    "exposed_communication": "communication not covered by it",
    "copies": "copies",
    "data_wait": "data wait",
    "idle": "idle",
}


def traced_notes(traces: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence with the mean over the ranks of each part, and its range if it differs between them; or why
    there is none. Empty if PyTorch's profiler traced no step. traces: of analysis/read/columns/traces.py."""
    found = [trace["parts"] for trace in traces if trace.get("parts")]
    if not found:
        without = [trace for trace in traces if trace.get("reason") and trace["profiler"] == "torch.profiler"]
        return [f"{'trace' if each.get('file') else 'no trace'}: {each['reason']}" for each in without[:1]]
    steps = next(trace["steps"] for trace in traces if trace.get("parts"))
    of = f"trace of {steps} step{'s' * (steps != 1)} on {len(found)} rank{'s' * (len(found) != 1)}"
    parts = [_part(title, [part.get(name, 0.0) for part in found]) for name, title in NAMES.items()]
    window = duration(fmean(part.get("window", 0.0) for part in found))
    return [f"{of}: {', '.join(filter(None, parts))}, of {window} per step"]


def traced_exposed(traces: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return seconds per step of communication that computation does not cover, of each traced rank."""
    return [trace["parts"].get("exposed_communication", 0.0) for trace in traces if trace.get("parts")]


def _part(title: str, seconds: Sequence[float]) -> str:
    if not any(seconds):
        return ""
    low, high = duration(min(seconds)), duration(max(seconds))
    return f"{title} {duration(fmean(seconds))}" + (f" ({low} to {high})" if low != high else "")
