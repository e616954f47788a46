"""What torch.compile left to eager PyTorch."""

from __future__ import annotations

from typing import Any, List, Mapping

# Reasons that are told; more are counted.
TOLD = 3


def fallbacks() -> List[str]:
    """One sentence for each kind; empty where all was compiled. Of this process, since its start."""
    # torch.compile has loaded it; by itself it takes seconds.
    from torch._dynamo.utils import counters

    return sentences(counters)


def sentences(counters: Mapping[str, Mapping[str, Any]]) -> List[str]:
    """counters: torch._dynamo.utils.counters."""
    said = []
    breaks = counters.get("graph_break", {})
    if breaks:
        shown = "; ".join(_line(reason) for reason in list(breaks)[:TOLD])
        more = f"; and {len(breaks) - TOLD} more reasons" if len(breaks) > TOLD else ""
        said.append(
            f"torch.compile broke the graph {sum(breaks.values())} times and ran the rest eagerly: {shown}{more}"
        )
    frames = counters.get("frames", {})
    left = frames.get("total", 0) - frames.get("ok", 0)
    if left > 0:
        said.append(f"torch.compile left {left} of {frames['total']} functions uncompiled, and ran them eagerly")
    skipped = counters.get("inductor", {}).get("cudagraph_skips", 0)
    if skipped:
        said.append(f"torch.compile ran {skipped} compiled functions without CUDA graphs, which its mode asks for")
    return said


def _line(reason: Any) -> str:
    """Reasons run over many lines, the first of which says it."""
    return str(reason).strip().splitlines()[0][:200]
