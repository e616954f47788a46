"""Schema of `workload`: a network of the catalogue, or the user's own training."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Kind(Enum):
    catalog = "catalog"
    script = "script"
    command = "command"


class ProcessesPerNode(Enum):
    gpu = "gpu"
    node = "node"


class Single(Enum):
    distributed = "distributed"
    plain = "plain"


@dataclass
class Workload:
    kind: Kind = Kind.catalog
    python: str | None = None
    command: list[str] = field(default_factory=list)
    params: dict[str, Any] = field(default_factory=dict)
    samples_per_step: str = "global_batch"
    unit: str = "samples"
    name: str | None = None
    cwd: str | None = None
    shell: bool = False
    launcher: str = "harness"
    processes_per_node: ProcessesPerNode | None = None
    single: Single = Single.distributed
    step: str | None = None
    pattern: str | None = None
    stop: bool = True
    resume_args: list[str] = field(default_factory=list)
    signals: bool = False
    probe_steps: int = 5
    trace: int = 3
    probe_limit: float = 0.1
