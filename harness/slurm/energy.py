"""What Slurm's energy accounting says of an attempt, asked for on its first node when its ranks have ended.

Slurm counts the energy of whole nodes (sstat(1), ConsumedEnergyRaw): the start-up, the evaluation and the probes are in
it, and on nodes that are shared what other jobs took. It is asked here, and not of the accounting afterwards, because
an attempt is one step of a job, which may hold several runs, and because not every cluster has a data base of steps.
The value is None, with the reason, wherever Slurm does not count; it is never 0.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.core import spec
from harness.slurm.client import Client, SlurmUnavailable

FILE = "slurm_energy.json"
VERSION = 1
# A controller that is away must not hold up the end of a run.
COMMAND_SECONDS = 10
# slurm.h: what stands for "no value": NO_VAL, INFINITE, and from so much on NO_VAL64 and INFINITE64.
NO_VALUES = frozenset({2.0**32 - 2, 2.0**32 - 1})
NO_VALUE_64 = 2.0**63


def write(attempt_dir: Path, environ: Mapping[str, str] = os.environ) -> None:
    """Writes FILE (schemas/slurm_energy.schema.json) of an attempt that is a step of a Slurm job."""
    job, step = environ.get("SLURM_JOB_ID"), environ.get("SLURM_STEP_ID")
    if "SUBMITIT_LOCAL_JOB_ID" in environ or job is None:
        return
    spec.write_json(attempt_dir / FILE, {"v": VERSION, **_asked(f"{job}.{step}" if step else None)})


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
        said = client.step_field(step, "ConsumedEnergyRaw")
    except SlurmUnavailable:
        said = None
    joules = None if said is None else joules_of(said)
    if joules is None:
        return _absent(kind, f"sstat has no ConsumedEnergyRaw of step {step}")
    return {"plugin": kind, "joules": joules, "reason": None}


def plugin(settings: Mapping[str, str]) -> str | None:
    """The energy plugin that Slurm's settings name; None if Slurm does not count energy."""
    kind = settings.get("AcctGatherEnergyType")
    return None if kind in (None, "", "(null)", "acct_gather_energy/none") else kind


def joules_of(said: str) -> float | None:
    """What sstat printed for one step; None where that is no energy."""
    try:
        joules = float(said.strip())
    except ValueError:
        return None
    return joules if 0 < joules < NO_VALUE_64 and joules not in NO_VALUES else None


def _absent(kind: str | None, reason: str) -> dict[str, Any]:
    return {"plugin": kind, "joules": None, "reason": reason}
