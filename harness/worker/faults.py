"""Inject failures and stragglers at a given step, to measure what they cost.

A failure is injected once per run; later attempts do not fail again. A slow rank stays slow.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Callable

from harness.core.events import EventWriter, attempt_dirs
from harness.core.rendezvous import Rendezvous
from harness.core.spec import RunSpec

MARKER = "fault.rank{rank}"


def with_fault(
    step: Callable[[], None],
    spec: RunSpec,
    rendezvous: Rendezvous,
    run_dir: Path,
    attempt_dir: Path,
    log: EventWriter,
    first_step: int,
) -> Callable[[], None]:
    """Return `step`, with the fault before it on the ranks that are to fail."""
    fault = spec.fault
    per_node = spec.placement.ranks_per_node
    hit = rendezvous.rank == fault.rank
    if fault.name == "kill_node":
        hit = rendezvous.rank // per_node == fault.rank // per_node
    marker = MARKER.format(rank=rendezvous.rank)
    had_it = any((attempt / marker).exists() for attempt in attempt_dirs(run_dir))
    if fault.name == "none" or not hit or (had_it and fault.name != "slow_rank"):
        return step
    fail = {"kill_rank": _die, "kill_node": _die, "hang": _hang, "slow_rank": lambda: time.sleep(fault.seconds)}
    at = first_step - 1

    def faulty() -> None:
        nonlocal at
        at += 1
        if at == fault.step or (fault.name == "slow_rank" and at > fault.step):
            if not (attempt_dir / marker).exists():
                (attempt_dir / marker).touch()
                log.write("fault", fault=fault.name, step=at)
                print(f"fault={fault.name} injected at step {at}", file=sys.stderr, flush=True)
            fail[fault.name]()
        step()

    return faulty


def slowed(step: Callable[[], None], spec: RunSpec, rendezvous: Rendezvous) -> Callable[[], None]:
    """Return `step` as the probes take it, after training: only a slow rank keeps its fault."""
    if spec.fault.name != "slow_rank" or rendezvous.rank != spec.fault.rank:
        return step

    def late() -> None:
        time.sleep(spec.fault.seconds)
        step()

    return late


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _hang() -> None:
    while True:
        time.sleep(3600)
