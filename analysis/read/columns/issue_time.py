"""Host time to issue the steps compared with their duration: whether a run is launch-bound.

The host issues kernels ahead of the GPU. If issuing takes as long as the steps, the GPU waits for the host, and the
scaling is the host's: a faster GPU changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from analysis.base.text import percent
from analysis.read.log.values import Block
from analysis.read.row import Run

LAUNCH_BOUND = "launch-bound"
# Shares above this count as the whole step, since they are extrapolated from the first step of each block.
LEAST_SHARE = 0.95


def issue_columns(blocks: Iterable[Block]) -> dict[str, Any]:
    """Return the columns from a run's measured blocks; empty if its log lacks issue times.

    issue_seconds: host seconds to issue the blocks before their closing fences. issue_share: host seconds to issue a
    step into an empty queue, relative to the duration of a step.
    """
    issued = [block for block in blocks if block.issue_seconds is not None and block.first_issue_seconds is not None]
    seconds = math.fsum(block.seconds for block in issued)
    if not seconds:
        return {}
    first = math.fsum(block.n * (block.first_issue_seconds or 0.0) for block in issued)
    return {"issue_seconds": math.fsum(block.issue_seconds or 0.0 for block in issued), "issue_share": first / seconds}


def is_launch_bound(run: Run) -> bool:
    """Return whether the host limits the step time. False on CPUs, where issuing a step is computing it; and if the
    cached-batch probe is missing or shows waiting for data, which would count as issue time."""
    share, cached = run.issue_share, run.cached_batch_seconds
    if share is None or cached is None or run.device == "cpu":
        return False
    return share >= LEAST_SHARE and cached >= LEAST_SHARE * run.step_seconds


def issue_share(completed: Sequence[Run]) -> float | None:
    """Return the mean over a point's runs; None on CPUs or if a run lacks it."""
    shares = [None if run.device == "cpu" else run.issue_share for run in completed]
    known = [share for share in shares if share is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(shares) else None


def issue_notes(completed: Sequence[Run]) -> list[str]:
    """Return the note for a launch-bound point; empty for others."""
    bound = [run.issue_share for run in completed if run.issue_share is not None and is_launch_bound(run)]
    if not bound:
        return []
    return [
        f"{LAUNCH_BOUND}: the host needs {percent(min(1.0, max(bound)))} of the step time to issue the step, so the "
        "GPU waits for it and the scaling shown is the host's; a larger batch, CUDA graphs or compilation would show "
        "the GPU's"
    ]
