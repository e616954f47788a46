"""Reads an attempt's energy from Slurm, on the first node once the ranks have ended.

Slurm counts the energy of whole nodes (sstat(1), ConsumedEnergyRaw), including start-up, evaluation, probes and, on
shared nodes, other jobs. It is read here rather than from the accounting later because an attempt is one step of a job
that may hold several runs, and not every cluster has a step database. Where Slurm does not count energy the value is
None with a reason, never 0.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.core import spec
from harness.core.run_files import SLURM_ENERGY
from harness.core.seals import sealed
from harness.slurm.client import Client, SlurmUnavailable

VERSION = 1
# An unresponsive controller must not delay the end of a run.
COMMAND_SECONDS = 10
# slurm.h: values that mean "no value": NO_VAL and INFINITE, and from NO_VALUE_64 up NO_VAL64 and INFINITE64.
NO_VALUES = frozenset({2.0**32 - 2, 2.0**32 - 1})
NO_VALUE_64 = 2.0**63


def write(attempt_dir: Path, environ: Mapping[str, str] = os.environ) -> None:
    """Write SLURM_ENERGY (schemas/slurm_energy.schema.json) for an attempt that is a step of a Slurm job."""
    job, step = environ.get("SLURM_JOB_ID"), environ.get("SLURM_STEP_ID")
    if "SUBMITIT_LOCAL_JOB_ID" in environ or job is None:
        return
    spec.write_json(attempt_dir / SLURM_ENERGY, sealed({"v": VERSION, **_asked(f"{job}.{step}" if step else None)}))


def _asked(step: str | None) -> dict[str, Any]:
    client = Client(seconds=COMMAND_SECONDS)
    try:
        settings = client.settings()
    except SlurmUnavailable:
        settings = {}
    if not settings:
        return _absent(None, "scontrol did not answer")
    kind = plugin(settings)
    if kind is None:
        return _absent(None, "the cluster has no AcctGatherEnergyType")
    if step is None or not step.rpartition(".")[2].isdigit():
        return _absent(kind, "the ranks were not started as a step of their own")
    try:
        output = client.step_field(step, "ConsumedEnergyRaw")
    except SlurmUnavailable:
        output = None
    joules = None if output is None else joules_of(output)
    if joules is None:
        return _absent(kind, f"sstat has no ConsumedEnergyRaw of step {step}")
    return {"plugin": kind, "joules": joules, "reason": None}


def plugin(settings: Mapping[str, str]) -> str | None:
    """The energy plugin named in Slurm's settings; None if Slurm does not count energy."""
    kind = settings.get("AcctGatherEnergyType")
    return None if kind in (None, "", "(null)", "acct_gather_energy/none") else kind


def joules_of(output: str) -> float | None:
    """Parse sstat's output for one step; None if it is not an energy."""
    try:
        joules = float(output.strip())
    except ValueError:
        return None
    return joules if 0 < joules < NO_VALUE_64 and joules not in NO_VALUES else None


def _absent(kind: str | None, reason: str) -> dict[str, Any]:
    return {"plugin": kind, "joules": None, "reason": reason}
