"""From requested runs to job arrays: de-duplication, grouping by resource shape, cost.

Knows neither Hydra nor submitit nor files.
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
    """Resources that one job requests. Jobs with equal resources share a job array."""

    scheduler: str
    placement: Placement
    cpus_per_gpu: int
    timeout_minutes: float  # wall limit of one job
    signal_seconds: int = 60  # time between the warning to the ranks and the wall limit
    gres: str | None = None
    gpu_option: str = "gres"  # gres or gpus_per_node
    gpu_type: str | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    reservation: str | None = None
    memory_per_node: str | None = None  # as Slurm writes it, such as '64GB'
    exclusive: bool = False
    array_parallelism: int | None = None
    max_submit: int | None = None  # limit on this study's jobs in the queue
    modules: tuple[str, ...] = ()  # loaded before the ranks start
    setup: tuple[str, ...] = ()  # shell lines run before the ranks start
    sbatch_args: tuple[tuple[str, str], ...] = ()  # further sbatch options as (name, value)
    srun_args: tuple[str, ...] = ()
    mpi: str | None = None  # what starts MPI ranks (harness/plan/mpi.py); None without MPI
    server_nodes: int = 0  # nodes for parameter servers only, after those of the ranks
    staged: str | None = None  # environment to unpack on the nodes; None: used in place
    stage_folder: str | None = None  # where to unpack it
    stage_environment: str = "none"  # none, tar or sbcast
    one_process_per_node: bool = False  # a workload that drives all GPUs of its node

    @property
    def nodes(self) -> int:
        """Number of nodes; without a scheduler there is only this machine."""
        return self.placement.nodes + (0 if self.scheduler == "local" else self.server_nodes)

    @property
    def tasks_per_node(self) -> int:
        return 1 if self.one_process_per_node else self.placement.ranks_per_node

    @property
    def cpus_per_task(self) -> int:
        return self.cpus_per_gpu * self.placement.ranks_per_node // self.tasks_per_node


@dataclass(frozen=True)
class Request:
    """One requested run."""

    spec: RunSpec
    site: Site
    resources: Resources
    gpu_memory_gb: float | None = None  # of each GPU, in 2^30 bytes; None if unknown


@dataclass(frozen=True)
class Array:
    """One job array."""

    resources: Resources
    jobs: tuple[tuple[Request, ...], ...]  # the runs of each job: one, or with pack=true several in sequence
    packed: bool = False

    @property
    def requests(self) -> tuple[Request, ...]:
        return tuple(request for job in self.jobs for request in job)

    @property
    def in_batch_step(self) -> bool:
        """Return whether the job's batch step starts the ranks run by run, instead of srun in the batch script."""
        return self.packed or self.resources.mpi == MPIRUN

    @property
    def starts(self) -> int:
        """Maximum number of times a job uses its wall limit: the first start, requeues and restarts."""
        return max((1 + r.site.max_requeues + r.site.max_restarts for r in self.requests), default=1)

    @property
    def worst_case_node_hours(self) -> float:
        """Node-hours if every job uses its full wall limit as often as allowed."""
        return len(self.jobs) * self.resources.nodes * self.resources.timeout_minutes * self.starts / 60

    @property
    def worst_case_gpu_hours(self) -> float:
        return self.worst_case_node_hours * self.resources.placement.ranks_per_node


@dataclass(frozen=True)
class Plan:
    """The runs that one command launches, and those it leaves out."""

    arrays: tuple[Array, ...]  # to launch
    completed: tuple[str, ...] = ()  # run ids that already have a completed result
    queued: tuple[str, ...] = ()  # run ids already in the queue
    failed: tuple[str, ...] = ()  # run ids that failed and are not to be retried
    repeated: int = 0  # requests that duplicate another of this command
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
    """Group the runs to launch by resources, small shapes first.

    Within a shape, runs are ordered by the hash in their id. That is random with respect to what is measured, so
    machine drift is not mistaken for an effect, and it is reproducible.

    Args:
        requests: everything the command asks for.
        completed: run ids to leave out because they are done.
        queued: run ids to leave out because they are in the queue.
        failed: run ids to leave out because they failed.
        pack: put runs that differ only in the number of GPUs into one job.
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
    """Pack runs that differ only in the number of GPUs into one job: the largest size, the summed time."""
    series: dict[tuple[Resources, str], list[Request]] = {}
    for request in requests:
        anywhere = replace(request.resources, placement=_ANY)
        series.setdefault((anywhere, _without_size(request.spec)), []).append(request)
    packed: dict[Resources, list[tuple[Request, ...]]] = {}
    for (anywhere, _), members in series.items():
        placements = [request.spec.placement for request in members]
        largest = Placement(max(p.nodes for p in placements), max(p.ranks_per_node for p in placements))
        minutes = anywhere.timeout_minutes * len(members)
        packed.setdefault(replace(anywhere, placement=largest, timeout_minutes=minutes), []).append(tuple(members))
    return [Array(resources, tuple(jobs), packed=True) for resources, jobs in packed.items()]


def _without_size(spec: RunSpec) -> str:
    batch = "global_batch" if spec.scaling == WEAK else "batch_per_gpu"
    plain = to_plain(spec)
    for name in ("gpus", "placement", batch):
        del plain[name]
    if spec.workload is not None:
        del plain["workload"]["samples_per_step"]
    return json.dumps(plain, sort_keys=True)


def node_hours(arrays: Iterable[Array]) -> float:
    return sum(array.worst_case_node_hours for array in arrays)


def gpu_hours(arrays: Iterable[Array]) -> float:
    return sum(array.worst_case_gpu_hours for array in arrays)
