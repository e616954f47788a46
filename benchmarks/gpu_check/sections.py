"""The sections of the check in order: correctness first, then speed.

A section is a function run(ask, report). It calls `report` with each result as soon as it is known, and raises Skipped
if the machine lacks something. Standard library only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu_check.figures import Figure

Report = Callable[[Figure], None]


class Skipped(Exception):
    """The section cannot run here; the message says why."""


class NoGpu(Exception):
    """The whole check cannot run here; the message says why."""


@dataclass(frozen=True)
class Ask:
    """Parameters of a section.

    Attributes:
        device: 'cuda', or 'cpu' with --reduced, where every section runs in a small form.
        until: time.monotonic() by which the section should end; it is killed shortly afterwards.
        scratch: an empty folder.
        data: folder of the data sets.
    """

    device: str
    until: float
    scratch: Path
    data: Path

    @property
    def reduced(self) -> bool:
        return self.device == "cpu"

    @property
    def seconds_left(self) -> float:
        return self.until - time.monotonic()

    def bound(self, text: str) -> str | None:
        """A speed bound; None in the small form on a CPU."""
        return None if self.reduced else text


@dataclass(frozen=True)
class Section:
    """A section's entry.

    function: its module and name. weight: its share of 480 s in seconds. title: what it does. least: minimum seconds
    while any are left, since the first read from disk can take long.
    """

    name: str
    function: str
    weight: float
    title: str
    least: float = 0.0


HERE = "benchmarks.gpu_check"
# Time that a section does not use goes to later ones. The weights are for one H100 or H200 and 16 cores; each includes
# about 8 s for starting Python, PyTorch and CUDA.
SECTIONS = (
    Section("machine", f"{HERE}.machine:run", 10, "driver, builds, clocks", least=90),
    Section("numerics", f"{HERE}.numerics:run", 116, "logits and gradients, GPU against CPU"),
    Section("defects", f"{HERE}.defects:run", 14, "fused steps in poisoned memory"),
    Section("graph_equal", f"{HERE}.graphs:equal", 22, "CUDA graph against eager steps"),
    Section("resume", f"{HERE}.resume:run", 25, "checkpoint, new process, against uncut"),
    Section("fence", f"{HERE}.fence:run", 28, "the clock of a block against CUDA events"),
    Section("worker_cifar", f"{HERE}.beside:cifar", 52, "worker against a hand-written loop, CIFAR ResNets"),
    Section("worker_resnet50", f"{HERE}.beside:resnet50", 100, "worker against a hand-written loop, ResNet-50"),
    Section("graph_gain", f"{HERE}.graphs:gain", 18, "what a CUDA graph gains"),
    Section("jax", f"{HERE}.jax_worker:run", 17, "JAX worker against a minimal jitted loop", least=60),
    Section("energy", f"{HERE}.energy:run", 18, "energy counter against the integral of power"),
    Section("harness", f"{HERE}.harness_runs:run", 27, "through python -m harness"),
    Section("accuracy", f"{HERE}.accuracy:run", 33, "the time-to-accuracy recipe on Fashion-MNIST"),
)
