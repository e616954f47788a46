"""By how much the clocks of an attempt's nodes differ, from what the ranks did together.

analysis/read/clocks.py does the same for the report.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from itertools import islice
from pathlib import Path
from typing import TypeVar

from harness.core import run_files
from harness.core.spec import read_run
from harness.core.strategies import STRATEGIES

# Lines at the beginning of a log in which the start and the first steps are.
LINES = 100
# Clocks that a network sets agree better than the ranks do.
SAME_SECONDS = 1.0
# Parts of the start-up that come after the ranks have met.
AFTER_RENDEZVOUS = ("build", "facts")

Machine = TypeVar("Machine", bound=Hashable)


def leads(attempt_dir: Path, rank_of: Mapping[Machine, int]) -> dict[Machine, float | None]:
    """Return by how many seconds the clock of each machine is ahead of a common one; None where it is unknown.

    rank_of: a rank on each machine.
    """
    spec, _ = read_run(attempt_dir.parent)
    strategy = STRATEGIES.get(spec.strategy)
    synchronous = spec.workload is not None or (strategy is not None and strategy.synchronous)
    moments = {machine: _moments(attempt_dir, rank, synchronous) for machine, rank in rank_of.items()}
    reference = max(moments, key=lambda machine: len(moments[machine]))
    found: dict[Machine, float | None] = dict.fromkeys(moments)
    found[reference] = 0.0
    for machine, own in moments.items():
        shared = [moment for moment in own if moment in moments[reference]]
        if shared:
            lead = own[shared[0]] - moments[reference][shared[0]]
            found[machine] = lead if abs(lead) > SAME_SECONDS else 0.0
    return found


def _moments(attempt_dir: Path, rank: int, synchronous: bool) -> dict[tuple[str, int], float]:
    """Return the unix seconds of the moments that a rank shares with the others, the more exact one first."""
    found: dict[tuple[str, int], float] = {}
    try:
        with open(attempt_dir / run_files.events(rank), "rb") as file:
            for line in islice(file, LINES):
                event = json.loads(line)
                if event["ev"] == "start" and "rendezvous" in event.get("startup_seconds", {}):
                    after = sum(event["startup_seconds"].get(part, 0.0) for part in AFTER_RENDEZVOUS)
                    found["met", 0] = event["t"] - after
                if event["ev"] == "steps":
                    ended = {("step", event["step"] + event["n"]): event["t"]}
                    return {**ended, **found} if synchronous else found
    except (OSError, ValueError, KeyError, TypeError):
        pass  # it had not begun, or its last line is torn
    return found
