"""Host time to issue the steps beside the time that they took: whether a run is launch-bound.

A GPU computes behind the host, which issues kernels in advance. Where issuing them takes as long as the steps, the GPU
waits for the host, and the run scales as the host does: a faster GPU, or a larger one, changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from analysis.base.text import percent
from analysis.read.log.values import Block
from analysis.read.row import Run

LAUNCH_BOUND = "launch-bound"
# From here on, the share counts as the whole step: the first step of a block stands for all of them, give or take.
LEAST_SHARE = 0.95


def issue_columns(blocks: Iterable[Block]) -> dict[str, Any]:
    """Columns of a run from its measured blocks; empty for a log that does not hold them.

    issue_seconds: host seconds to issue the blocks before their closing fences. issue_share: host seconds to issue a
    step into an empty queue, as a share of the seconds that a step took.
    """
    issued = [block for block in blocks if block.issue_seconds is not None and block.first_issue_seconds is not None]
    seconds = math.fsum(block.seconds for block in issued)
    if not seconds:
        return {}
    first = math.fsum(block.n * (block.first_issue_seconds or 0.0) for block in issued)
    return {"issue_seconds": math.fsum(block.issue_seconds or 0.0 for block in issued), "issue_share": first / seconds}


def is_launch_bound(run: Run) -> bool:
    """False on a CPU, where issuing a step and computing it are the same thing; and where the probe with a cached batch
    shows that the host waits for data, or was not taken: the wait is part of what the host needs to issue a step."""
    share, cached = run.issue_share, run.cached_batch_seconds
    if share is None or cached is None or run.device == "cpu":
        return False
    return share >= LEAST_SHARE and cached >= LEAST_SHARE * run.step_seconds


def issue_share(completed: Sequence[Run]) -> float | None:
    """The mean over the runs of a point; None on CPUs and where one of them does not have it."""
    shares = [None if run.device == "cpu" else run.issue_share for run in completed]
    known = [share for share in shares if share is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(shares) else None


def issue_notes(completed: Sequence[Run]) -> list[str]:
    """Notes for a launch-bound point; empty for any other."""
    bound = [run.issue_share for run in completed if run.issue_share is not None and is_launch_bound(run)]
    if not bound:
        return []
    return [
        f"{LAUNCH_BOUND}: the host needs {percent(min(1.0, max(bound)))} of the step time to issue the step, so the "
        "GPU waits for it and the scaling shown is the host's; a larger batch, CUDA graphs or compilation would show "
        "the GPU's"
    ]
