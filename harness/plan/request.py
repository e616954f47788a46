"""Turns a composed configuration into a `Request`: cross-checks what the schema cannot, and fills in machine facts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from pathlib import Path
from typing import Any

from harness.config import (
    data_source,
    evaluation,
    input_pipelines,
    optimizers,
    performance_options,
    profiling,
    value_ranges,
)
from harness.config import workload as workload_checks
from harness.config.capabilities import unsupported
from harness.config.schema import Baseline, Config, Fault, NoOptions, Scheduler, Strategy
from harness.config.workload_schema import Kind
from harness.core import shards
from harness.core.data_location import SHARDS, SYNTHETIC, DataError, locate
from harness.core.errors import UserError
from harness.core.launchers import MPIRUN
from harness.core.spec import EMULATED, CheckpointSpec, DatasetSpec, FaultSpec, MeasureSpec, RunSpec
from harness.core.strategies import PLAIN, offered_by
from harness.plan import (
    environments,
    gpu_sharing,
    machine,
    memory,
    mpi,
    run_shape,
    secret_environment,
    site_resources,
    workload,
)
from harness.plan.plan import Request
from harness.plan.run_shape import PROJECT


@dataclass(frozen=True)
class StudyRequest:
    """One command: the study's folder and the requested runs."""

    name: str
    folder: Path
    scheduler: str
    retry: str
    wait: bool
    pack: bool
    budget_node_hours: float | None
    plan_only: bool
    target_accuracy: float | None
    requests: tuple[Request, ...]
    skipped: tuple[str, ...]  # unsupported combinations left out of the sweep, one sentence each
    notes: tuple[str, ...]  # further remarks about the runs
    secrets: dict[str, str] = field(default_factory=dict, repr=False)  # variables for the runs that are never written


def study_request(points: Sequence[Config]) -> StudyRequest:
    """Check the points and turn them into requests. Raises UserError for the first mistake."""
    first = points[0]
    secrets = secret_environment.take(point.cluster for point in points)
    secrets |= secret_environment.take_from_commands((point.workload, point.cluster) for point in points)
    of_the_study = ("study", "results", "plan_only", "retry", "wait", "pack", "budget_node_hours", "skip_unsupported")
    for point in points:
        for key in (*of_the_study, "target_accuracy", "repeats"):
            if getattr(point, key) != getattr(first, key):
                raise UserError(f"'{key}' cannot be swept: one command makes one study")
        if point.cluster.scheduler != first.cluster.scheduler:
            raise UserError("clusters with different schedulers cannot be swept in one command")
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", first.study):
        raise UserError(f"study='{first.study}' names a folder: use letters, digits, '.', '_' and '-'")
    if not first.results.strip():
        raise UserError("results= is empty: name the folder for studies, such as results=results")
    if first.cluster.scheduler is not Scheduler.slurm:
        for key in ("pack", "wait"):
            if getattr(first, key) != getattr(Config(), key):
                raise UserError(
                    f"{key}={str(getattr(first, key)).lower()} needs cluster.scheduler=slurm; "
                    "otherwise runs execute one after another and this command waits for them"
                )
    own = [point for point in points if point.workload.kind is not Kind.catalog]
    points = [point for point in points if point.workload.kind is Kind.catalog]
    for point in points:
        workload_checks.check(point)
    lookup = environments.Lookup(PROJECT)
    owned = tuple(workload.request(point, lookup) for point in _repeated(own))
    chosen = [_with_pipeline(variant) for point in points for variant in _with_baseline(point)]
    variants = [variant for variant, _ in chosen]
    wanted = _repeated([each for variant in variants for each in data_source.variants(variant)])
    refused = [unsupported(point) for point in wanted]
    if skipped := [sentence for sentence in refused if sentence]:
        if not first.skip_unsupported:
            more = "; skip_unsupported=true drops unsupported combinations from a sweep" if len(points) > 1 else ""
            raise UserError(skipped[0] + more)
        if len(skipped) == len(wanted) and not owned:
            raise UserError(f"skip_unsupported=true leaves nothing to run: {skipped[0]}")
    offered = [point for point, sentence in zip(wanted, refused, strict=True) if not sentence]
    requests = tuple(request(point, lookup) for point in offered)
    missing: list[str] = []
    for point, asked in zip(offered, requests, strict=True):
        absent = list(_absent(point, asked.spec.replicas, lookup))
        if absent and not first.plan_only:
            raise absent[0]
        missing.extend(f"these runs cannot start yet: {error}" for error in absent)
        if not absent:
            input_pipelines.check_package(point, asked.site.python)
    became = [
        performance_options.became(point, asked.spec.cluster.device)
        for point, asked in zip(offered, requests, strict=True)
    ]
    if requests:
        evaluation.check([asked.spec for asked in requests], first.target_accuracy)
    if first.cluster.scheduler is not Scheduler.slurm:  # on Slurm, only the node can tell
        for asked in (*requests, *owned):
            if asked.resources.mpi == MPIRUN and not missing:
                mpi.mpirun(asked.site.python)
    return StudyRequest(
        name=first.study,
        folder=Path(first.results).expanduser() / first.study,
        scheduler=first.cluster.scheduler.name,
        retry=first.retry.name,
        wait=first.wait,
        pack=first.pack,
        budget_node_hours=first.budget_node_hours,
        plan_only=first.plan_only,
        target_accuracy=first.target_accuracy,
        requests=(*requests, *owned),
        secrets=secrets,
        skipped=tuple(dict.fromkeys(skipped)),
        notes=tuple(
            dict.fromkeys(
                note
                for note in (
                    *missing,
                    *became,
                    *(why for _, why in chosen),
                    *map(_unequal_shares, requests),
                    *workload.notes(owned),
                    *secret_environment.notes(secrets),
                )
                if note
            )
        ),
    )


def _with_pipeline(config: Config) -> tuple[Config, str]:
    """Resolve the input pipeline for the point's device. Device errors are reported later, by `request`."""
    cluster = config.cluster
    local = cluster.scheduler is Scheduler.local
    try:
        device = run_shape.device(cluster.device, local)
    except UserError:
        device = None
    memory_gb = cluster.gpu_memory_gb
    if memory_gb is None and local and device == "cuda":
        memory_gb = machine.gpu_memory_gb()
    return input_pipelines.resolved(config, device, memory_gb)


def _with_baseline(config: Config) -> list[Config]:
    """Return the point and, at one GPU, the plain baseline in its place or in addition."""
    if config.gpus > 1 or config.strategy.name == PLAIN or config.baseline is Baseline.wrapped:
        return [config]
    plain = replace(config, strategy=Strategy(name=PLAIN, options=NoOptions()))
    return [plain] if config.baseline is Baseline.plain else [plain, config]


def _repeated(points: list[Config]) -> list[Config]:
    """Repeat each point `repeats` times, like repeat=0,1,...

    The plan shuffles the runs, so that drift of the machine does not affect a single point.
    """
    repeats = points[0].repeats if points else None
    if repeats is None:
        return points
    if repeats < 1:
        raise UserError(f"repeats={repeats}: give a number of at least 1")
    if numbered := [point.repeat for point in points if point.repeat]:
        raise UserError(
            f"repeats={repeats} and repeat={numbered[0]} both say which repeats to make: repeats={repeats} makes 0 to "
            f"{repeats - 1}; leave one of the two out"
        )
    return [replace(point, repeat=repeat) for point in points for repeat in range(repeats)]


def request(config: Config, lookup: environments.Lookup | None = None) -> Request:
    """Build the request for one run. lookup: that of its plan. Raises UserError."""
    lookup = lookup or environments.Lookup(PROJECT)
    value_ranges.check(config)
    config, _ = _with_pipeline(config)
    cluster, shape = config.cluster, run_shape.shape(config)
    device = shape.device
    if config.framework.name == EMULATED and device != "cpu":
        raise UserError(f"framework=emulated waits on the host, not on device {device}; set cluster.device=cpu")
    if sentence := performance_options.on_device(config, device):
        raise UserError(sentence)
    spec = RunSpec(
        framework=config.framework.name,
        framework_options=_options(
            performance_options.resolved(config.framework.options, config.precision.name, device)
        ),
        environment=lookup.identity(config.framework.environment, cluster),
        strategy=config.strategy.name,
        strategy_options=_options(config.strategy.options),
        model=config.model.name,
        dataset=dataset(config),
        precision=config.precision.name,
        gpus=config.gpus,
        placement=shape.placement,
        scaling=config.scaling.name,
        global_batch=shape.global_batch,
        batch_per_gpu=shape.batch_per_gpu,
        seed=config.seed,
        repeat=config.repeat,
        optimizer=optimizers.spec(config.optimizer),
        measure=MeasureSpec(**vars(config.measure)),
        cluster=run_shape.cluster_spec(cluster, shape),
        env=dict(sorted(cluster.env.items())),
        checkpoint=CheckpointSpec(interval_steps=config.checkpoint.interval_steps),
        fault=_fault(config.fault),
        verify=config.verify,
        deterministic=config.deterministic,
        **profiling.fields(config),
        data=input_pipelines.spec(config, device),
    )
    data_root = _data_root(config)
    contained = cluster.container.runtime is not None
    if contained and config.framework.environment == config.framework.name:
        raise UserError(
            f"framework.environment={config.framework.environment} names an environment outside the container; name "
            "the Python inside the image, such as framework.environment=python3"
        )
    environment = config.framework.environment
    where = run_shape.site(
        config,
        shape,
        # Inside a container, only the container can tell whether it exists.
        python=environment if contained else str(lookup.find(environment, cluster, "framework.environment")),
        data_root=data_root,
        folders=_folders(config, data_root),
        max_requeues=config.checkpoint.max_requeues,
        shared_gpus=gpu_sharing.needs_gloo(config, shape.devices),
    )
    starter = mpi.starter(cluster) if mpi.needed(config.strategy) else None
    staged = site_resources.staged(cluster, where.python, starter, config.pack)
    memory.check(spec, cluster.gpu_memory_gb, offered_by(config.framework.name))
    resources = site_resources.resources(
        cluster, shape.placement, shape.cpus_per_gpu, starter, spec.server_nodes, staged
    )
    return Request(spec, where, resources, cluster.gpu_memory_gb)


def _options(options: Any) -> dict[str, Any]:
    """Options as stored in a run's spec: those added later are omitted at their default, which keeps RunSpec.run_id."""
    later = {f.name: f.default for f in fields(options) if f.metadata.get("later")}
    asked = {name: value for name, value in vars(options).items() if name not in later or value != later[name]}
    return {name: value.name if isinstance(value, Enum) else value for name, value in asked.items()}


def dataset(config: Config) -> DatasetSpec:
    """Dataset settings without those that the reader ignores."""
    values = {**vars(config.dataset), "mean": tuple(config.dataset.mean), "std": tuple(config.dataset.std)}
    values |= data_source.names(config)
    if config.dataset.reader != SYNTHETIC:
        values |= {"train_samples": 0, "test_samples": 0}
    if config.dataset.reader == SHARDS:
        values |= {"shuffle_buffer": config.data.shuffle_buffer}
    return DatasetSpec(**values)


def _data_root(config: Config) -> str:
    return str(Path(config.data.root).expanduser().absolute())


def _absent(config: Config, replicas: int, lookup: environments.Lookup) -> Iterator[UserError]:
    """Errors about what the runs of a point need and this machine does not have. A plan alone needs none of it."""
    framework, cluster = config.framework, config.cluster
    if config.data.check:
        try:
            folder = locate(config.dataset.name, config.dataset.reader, _data_root(config))
        except DataError as error:
            yield UserError(str(error))
        else:
            if config.dataset.reader == SHARDS and folder is not None:
                _check_shards(folder, replicas)
    if cluster.container.runtime is None:
        try:
            lookup.interpreter(framework, cluster)
        except UserError as error:
            yield error


def _check_shards(folder: Path, replicas: int) -> None:
    """Check that every replica gets a shard. Raises UserError."""
    try:
        shards.check_enough(len(shards.read_index(folder).train), replicas)
    except DataError as error:
        raise UserError(str(error)) from None


def _folders(config: Config, data_root: str | None) -> tuple[str, ...]:
    """Folders besides the results that a rank in a container must see."""
    return () if config.dataset.reader == "synthetic" or data_root is None else (data_root,)


def _fault(fault: Fault) -> FaultSpec:
    """The fault without fields that it ignores, so that equivalent runs have the same id."""
    if fault.name == "none":
        return FaultSpec()
    return FaultSpec(fault.name, fault.step, fault.rank, fault.seconds if fault.name == "slow_rank" else 0.0)


def _unequal_shares(asked: Request) -> str:
    """Warn about shards that do not divide evenly between ranks; empty if they do, or if only the nodes see them."""
    if asked.spec.dataset.reader != SHARDS:
        return ""
    try:
        folder = locate(asked.spec.dataset.name, SHARDS, asked.site.data_root)
        return "" if folder is None else shards.unequal_shares(shards.read_index(folder).train, asked.spec.replicas)
    except DataError:
        return ""
