"""From requested runs to job arrays: placement, de-duplication, grouping by resource shape, cost.

A pure room: it knows neither Hydra nor submitit nor files.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from harness.core.launchers import MPIRUN
from harness.core.serialization import to_plain
from harness.core.spec import WEAK, Placement, RunSpec, Site

_ANY = Placement(0, 0)


@dataclass(frozen=True)
class Resources:
    """What the scheduler is asked for, for one job. Jobs with equal resources share one job array.

    timeout_minutes: wall limit of one job. signal_seconds: how long before it the ranks are warned.
    gpu_option: gres or gpus_per_node. memory_per_node: as Slurm writes it, such as '64GB'.
    max_submit: most jobs of this study in the queue at a time. modules, setup: to load, and shell lines to run, before
    the ranks start. sbatch_args: further options of sbatch, (name, value). mpi: what starts ranks that use MPI
    (harness/plan/mpi.py); None for others. server_nodes: after those of the ranks, for parameter servers alone. staged:
    the environment that is unpacked on the nodes first, in stage_folder; None: it is used where it is.
    stage_environment: none, or how they get it: tar or sbcast.
    """

    scheduler: str
    placement: Placement
    cpus_per_gpu: int
    timeout_minutes: float
    signal_seconds: int = 60
    gres: str | None = None
    gpu_option: str = "gres"
    gpu_type: str | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    reservation: str | None = None
    memory_per_node: str | None = None
    exclusive: bool = False
    array_parallelism: int | None = None
    max_submit: int | None = None
    modules: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()
    sbatch_args: tuple[tuple[str, str], ...] = ()
    srun_args: tuple[str, ...] = ()
    mpi: str | None = None
    server_nodes: int = 0
    staged: str | None = None
    stage_folder: str | None = None
    stage_environment: str = "none"

    @property
    def nodes(self) -> int:
        """Without a scheduler there is but this machine."""
        return self.placement.nodes + (0 if self.scheduler == "local" else self.server_nodes)


@dataclass(frozen=True)
class Request:
    """One run that was asked for. gpu_memory_gb: of each GPU, in 2^30 bytes; None: not known."""

    spec: RunSpec
    site: Site
    resources: Resources
    gpu_memory_gb: float | None = None


@dataclass(frozen=True)
class Array:
    """One job array. elements: the runs of each of its jobs: one, or with pack=true several, one after another."""

    resources: Resources
    elements: tuple[tuple[Request, ...], ...]
    packed: bool = False

    @property
    def requests(self) -> tuple[Request, ...]:
        return tuple(request for element in self.elements for request in element)

    @property
    def in_batch_step(self) -> bool:
        """Whether each job's batch step starts the ranks, run by run, and not the batch script's srun."""
        return self.packed or self.resources.mpi == MPIRUN

    @property
    def starts(self) -> int:
        """How often a job may take its wall limit: the first start, requeues, restarts."""
        return max((1 + r.site.max_requeues + r.site.max_restarts for r in self.requests), default=1)

    @property
    def worst_case_node_hours(self) -> float:
        """Node-hours when every job takes its whole wall limit, as often as it may."""
        return len(self.elements) * self.resources.nodes * self.resources.timeout_minutes * self.starts / 60

    @property
    def worst_case_gpu_hours(self) -> float:
        return self.worst_case_node_hours * self.resources.placement.ranks_per_node


@dataclass(frozen=True)
class Plan:
    """arrays: what is to be launched. completed, queued, failed: run ids asked for that are not launched: they are
    done, in the queue, or failed and not to be tried again. repeated: requests that were the same run as another one of
    this command."""

    arrays: tuple[Array, ...]
    completed: tuple[str, ...] = ()
    queued: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    repeated: int = 0
    requests: tuple[Request, ...] = field(default=(), repr=False)

    @property
    def to_launch(self) -> tuple[Request, ...]:
        return tuple(request for array in self.arrays for request in array.requests)


def make_plan(
    requests: Sequence[Request],
    completed: Collection[str],
    queued: Collection[str],
    failed: Collection[str] = (),
    pack: bool = False,
) -> Plan:
    """Groups what is to be launched by resources, small shapes first.

    completed, queued, failed: run ids that are not to be launched, and why.
    Within a shape the order is that of the ids' hashes: random as to what is measured, so that a drift of the machine
    does not look like an effect of it, and the same every time.
    """
    unique: dict[str, Request] = {}
    for request in requests:
        unique.setdefault(request.spec.run_id, request)
    left_out = {*completed, *queued, *failed}
    wanted = [request for run_id, request in unique.items() if run_id not in left_out]
    wanted.sort(key=lambda request: request.spec.run_id[-12:])
    arrays = _packed(wanted) if pack else _by_shape(wanted)
    arrays.sort(key=lambda array: (array.resources.placement.world_size, array.resources.placement.nodes))
    return Plan(
        arrays=tuple(arrays),
        completed=tuple(r for r in unique if r in completed),
        queued=tuple(r for r in unique if r in queued and r not in completed),
        failed=tuple(r for r in unique if r in failed),
        repeated=len(requests) - len(unique),
        requests=tuple(unique.values()),
    )


def _by_shape(requests: Iterable[Request]) -> list[Array]:
    shapes: dict[Resources, list[Request]] = {}
    for request in requests:
        shapes.setdefault(request.resources, []).append(request)
    return [Array(resources, tuple((r,) for r in members)) for resources, members in shapes.items()]


def _packed(requests: Iterable[Request]) -> list[Array]:
    """One job for the runs that differ only in the number of GPUs: as large as the largest, as long as all together."""
    series: dict[tuple[Resources, str], list[Request]] = {}
    for request in requests:
        anywhere = replace(request.resources, placement=_ANY)
        series.setdefault((anywhere, _without_size(request.spec)), []).append(request)
    jobs: dict[Resources, list[tuple[Request, ...]]] = {}
    for (anywhere, _), members in series.items():
        placements = [request.spec.placement for request in members]
        largest = Placement(max(p.nodes for p in placements), max(p.ranks_per_node for p in placements))
        minutes = anywhere.timeout_minutes * len(members)
        jobs.setdefault(replace(anywhere, placement=largest, timeout_minutes=minutes), []).append(tuple(members))
    return [Array(resources, tuple(elements), packed=True) for resources, elements in jobs.items()]


def _without_size(spec: RunSpec) -> str:
    batch = "global_batch" if spec.scaling == WEAK else "batch_per_gpu"
    plain = to_plain(spec)
    for name in ("gpus", "placement", batch):
        del plain[name]
    return json.dumps(plain, sort_keys=True)


def node_hours(arrays: Iterable[Array]) -> float:
    return sum(array.worst_case_node_hours for array in arrays)


def gpu_hours(arrays: Iterable[Array]) -> float:
    return sum(array.worst_case_gpu_hours for array in arrays)
