"""From requested runs to job arrays: placement, de-duplication, grouping by resource shape, cost.

A pure room: it knows neither Hydra nor submitit nor files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from harness.errors import UserError
from harness.spec import Placement, RunSpec, Site


@dataclass(frozen=True)
class Resources:
    """What the scheduler is asked for, for one run. Runs with equal resources share one job array.

    timeout_minutes: wall limit of one run. memory_per_node: as Slurm writes it, such as '64GB'.
    setup: shell lines before the ranks start.
    """

    scheduler: str
    placement: Placement
    cpus_per_gpu: int
    timeout_minutes: float
    gres: str | None = None
    gpu_type: str | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    memory_per_node: str | None = None
    exclusive: bool = False
    array_parallelism: int | None = None
    setup: tuple[str, ...] = ()
    srun_args: tuple[str, ...] = ()


@dataclass(frozen=True)
class Request:
    """One run that was asked for."""

    spec: RunSpec
    site: Site
    resources: Resources


@dataclass(frozen=True)
class Array:
    """Runs of one resource shape: one job array."""

    resources: Resources
    requests: tuple[Request, ...]

    @property
    def worst_case_node_hours(self) -> float:
        """Node-hours when every run takes its whole wall limit."""
        return len(self.requests) * self.resources.placement.nodes * self.resources.timeout_minutes / 60


@dataclass(frozen=True)
class Plan:
    """arrays: what is to be launched. completed, queued: run ids asked for that need no launch. repeated: requests
    that were the same run as another one of this command."""

    arrays: tuple[Array, ...]
    completed: tuple[str, ...] = ()
    queued: tuple[str, ...] = ()
    repeated: int = 0
    requests: tuple[Request, ...] = field(default=(), repr=False)

    @property
    def to_launch(self) -> tuple[Request, ...]:
        return tuple(request for array in self.arrays for request in array.requests)


def place(gpus: int, gpus_per_node: int | None) -> Placement:
    """Spreads `gpus` ranks evenly over as few nodes as hold them; None: one node holds any number.

    Raises UserError where they do not divide evenly, with the nearest counts that do.
    """
    if gpus < 1:
        raise UserError(f"gpus={gpus}: give a whole number of at least 1")
    if gpus_per_node is None:
        return Placement(1, gpus)
    if gpus_per_node < 1:
        raise UserError(
            f"cluster.gpus_per_node={gpus_per_node}: give a whole number of at least 1, or null for no limit"
        )
    if not _fits(gpus, gpus_per_node):
        below = next(n for n in range(gpus - 1, 0, -1) if _fits(n, gpus_per_node))
        above = next(n for n in range(gpus + 1, 2 * gpus + gpus_per_node) if _fits(n, gpus_per_node))
        raise UserError(
            f"gpus={gpus} cannot be placed evenly on nodes with {gpus_per_node} GPUs each; "
            f"the nearest counts that can are {below} and {above}"
        )
    nodes = -(-gpus // gpus_per_node)
    return Placement(nodes, gpus // nodes)


def make_plan(requests: Sequence[Request], completed: Collection[str], queued: Collection[str]) -> Plan:
    """Groups what is neither completed nor queued by resources, small shapes first.

    completed, queued: run ids that the study already has, or that a scheduler already holds.
    """
    unique: dict[str, Request] = {}
    for request in requests:
        unique.setdefault(request.spec.run_id, request)
    shapes: dict[Resources, list[Request]] = {}
    for run_id, request in unique.items():
        if run_id not in completed and run_id not in queued:
            shapes.setdefault(request.resources, []).append(request)
    arrays = [Array(resources, tuple(members)) for resources, members in shapes.items()]
    arrays.sort(key=lambda array: (array.resources.placement.world_size, array.resources.placement.nodes))
    return Plan(
        arrays=tuple(arrays),
        completed=tuple(r for r in unique if r in completed),
        queued=tuple(r for r in unique if r in queued and r not in completed),
        repeated=len(requests) - len(unique),
        requests=tuple(unique.values()),
    )


def node_hours(arrays: Iterable[Array]) -> float:
    return sum(array.worst_case_node_hours for array in arrays)


def _fits(gpus: int, gpus_per_node: int) -> bool:
    return gpus % -(-gpus // gpus_per_node) == 0
