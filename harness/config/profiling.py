"""The `trace` keys: a trace of a few steps, or NVIDIA's nsys around each rank."""

from __future__ import annotations

import shutil
from typing import Any

from harness.config.schema import Config, Scheduler
from harness.core.errors import UserError
from harness.core.spec import CHROME, NO_TRACE, NSYS, RunSpec

MODES = {True: CHROME, False: NO_TRACE, NSYS: NSYS}


def fields(config: Config) -> dict[str, Any]:
    """Return the spec's `trace`, and `trace_steps` if it has an effect.

    Raises UserError for invalid values, and if nsys is requested for a run on this machine but not installed. On a
    cluster, only the compute nodes know.
    """
    if config.trace not in MODES:
        raise UserError(
            f"trace={config.trace}: give true (a trace of trace_steps steps per rank), nsys (NVIDIA's profiler around "
            "each rank) or false"
        )
    mode = MODES[config.trace]
    if mode == NSYS and config.cluster.scheduler is not Scheduler.slurm and not found_nsys(config):
        raise UserError(
            "trace=nsys, but there is no nsys on the PATH: install NVIDIA Nsight Systems or load its module, or take "
            "trace=true, which needs none"
        )
    return {"trace": mode, "trace_steps": config.trace_steps if mode == CHROME else _default_steps()}


def found_nsys(config: Config) -> str | None:
    """Return the path of nsys on this machine. In a container, only the container knows."""
    return "in the container" if config.cluster.container.runtime else shutil.which(NSYS)


def _default_steps() -> int:
    return RunSpec.trace_steps
