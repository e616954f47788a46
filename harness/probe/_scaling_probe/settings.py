"""What the rank's supervisor tells the probe: the JSON file that SCALING_PROBE names."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

VARIABLE = "SCALING_PROBE"
VERSION = 1
# Set by launchers other than the harness: torchrun and most others, Open MPI, PMIx, MPICH, srun.
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")


@dataclass(frozen=True)
class Further:
    """Further steps after the timed ones.

    Attributes:
        trace: steps to be traced; 0: none.
        steps: steps of a block with or without synchronisation; 0: none.
        limit: maximum share of the time so far that they take.
        rounds: maximum number of rounds, each a block with and one without synchronisation.
    """

    trace: int
    steps: int
    limit: float
    rounds: int


@dataclass(frozen=True)
class Settings:
    """How to measure one rank.

    Attributes:
        events: path of the rank's event log.
        warmup_steps: steps before the first measured one.
        block_steps: steps that are timed together.
        last_step: stop after so many steps; None: when the stop channel says so.
        samples_per_step: samples (or tokens, see `unit`) per optimiser step over all ranks.
        step: optimiser class, or "module:function", whose calls are the steps; None: found by itself.
        stop: end the training once enough steps were measured.
        precision: relative half-width at which the stop channel's server has measured enough; None: it does not decide.
        stop_channel: host and port of the server that decides when.
        token: shown to that server.
        start: what the supervisor knows of the `start` event.
        further: None: no further steps.
    """

    rank: int
    world_size: int
    events: str
    warmup_steps: int
    block_steps: int
    last_step: int | None
    samples_per_step: int
    unit: str
    step: str | None
    stop: bool
    precision: float | None
    stop_channel: tuple[str, int] | None
    token: str
    start: Mapping[str, Any]
    further: Further | None = None

    @property
    def samples(self) -> float:
        """Samples per step of this rank."""
        return self.samples_per_step / self.world_size


def own_rank() -> str | None:
    """This process's rank, as the launcher says; None in a process that is none."""
    return next((os.environ[name] for name in RANKS if name in os.environ), None)


def read(path: str) -> Settings:
    """Raises OSError or ValueError if the file is not there or of another version."""
    with open(path, encoding="utf-8") as file:
        told: dict[str, Any] = json.load(file)
    if told.get("v") != VERSION:
        raise ValueError(f"{path}: version {told.get('v')!r}; this probe reads version {VERSION}")
    steps, channel = told["steps"], told.get("stop_channel")
    further, stop = told.get("further"), told.get("stop", True)
    return Settings(
        rank=told["rank"],
        world_size=told["world_size"],
        events=told["events"],
        warmup_steps=steps["warmup"],
        block_steps=steps["block"],
        last_step=steps.get("last"),
        samples_per_step=told["samples_per_step"],
        unit=told.get("unit", "samples"),
        step=told.get("step"),
        stop=stop,
        precision=told.get("precision"),
        stop_channel=(channel[0], channel[1]) if channel else None,
        token=told.get("token") or "",
        start=told.get("start", {}),
        # They change the weights, so never where the training goes on.
        further=Further(**further) if further and stop else None,
    )
