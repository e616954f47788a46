"""Report what torch.compile left to eager PyTorch."""

from __future__ import annotations

from typing import Any, List, Mapping

# Reasons listed; further ones are only counted.
TOLD = 3


def fallbacks() -> List[str]:
    """Return one sentence per kind of fallback in this process; empty if everything was compiled."""
    # torch.compile has loaded it already; otherwise it takes seconds.
    from torch._dynamo.utils import counters

    return sentences(counters)


def sentences(counters: Mapping[str, Mapping[str, Any]]) -> List[str]:
    """Return the sentences for `counters`, those of torch._dynamo.utils."""
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
    """Return the first line of a reason, which summarises the others."""
    return str(reason).strip().splitlines()[0][:200]
