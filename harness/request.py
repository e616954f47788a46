"""A composed configuration as a `Request`: checks what a schema cannot, and fills in what this machine decides."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from harness import environments, machine
from harness.errors import UserError
from harness.plan import Request, Resources, place
from harness.schema import Cluster, Config, Device, Scaling, Scheduler
from harness.spec import ClusterSpec, DatasetSpec, MeasureSpec, OptimizerSpec, RunSpec, Site
from harness.worker.data.locate import DataError, locate
from models import catalog

PROJECT = Path(__file__).resolve().parent.parent
ONLY_SLURM = (
    *("gres", "gpu_type", "partition", "account", "qos", "constraint", "memory_per_node", "exclusive"),
    *("array_parallelism", "setup", "srun_args"),
)


@dataclass(frozen=True)
class StudyRequest:
    """One command: the study's folder, and the runs that it asks for."""

    name: str
    folder: Path
    scheduler: str
    plan_only: bool
    requests: tuple[Request, ...]


def study_request(points: Sequence[Config]) -> StudyRequest:
    """Raises UserError for the first mistake found."""
    first = points[0]
    for point in points:
        for key in ("study", "results", "plan_only"):
            if getattr(point, key) != getattr(first, key):
                raise UserError(f"'{key}' cannot be swept: one command makes one study")
        if point.cluster.scheduler != first.cluster.scheduler:
            raise UserError("clusters with different schedulers cannot be swept in one command")
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", first.study):
        raise UserError(f"study='{first.study}': use letters, digits, '.', '_' and '-', it names a folder")
    return StudyRequest(
        name=first.study,
        folder=Path(first.results).expanduser() / first.study,
        scheduler=first.cluster.scheduler.name,
        plan_only=first.plan_only,
        requests=tuple(map(request, points)),
    )


def request(config: Config) -> Request:
    """One run. Raises UserError."""
    _check(config)
    cluster = config.cluster
    placement = place(config.gpus, cluster.gpus_per_node)
    global_batch, batch_per_gpu = _batches(config)
    local = cluster.scheduler is Scheduler.local
    device = _device(cluster.device, local)
    local_gpus = machine.gpus() if local and device == "cuda" else ()
    cpus_per_gpu = cluster.cpus_per_gpu or (max(1, machine.cores() // len(local_gpus)) if local_gpus else 1)
    if config.precision.name == "fp16" and device != "cuda":
        raise UserError("precision=fp16 needs a GPU; on device cpu take fp32 or bf16")
    spec = RunSpec(
        framework=config.framework.name,
        framework_options=vars(config.framework.options),
        environment=config.framework.environment,
        strategy=config.strategy.name,
        strategy_options=vars(config.strategy.options),
        model=config.model.name,
        dataset=DatasetSpec(
            **{**vars(config.dataset), "mean": tuple(config.dataset.mean), "std": tuple(config.dataset.std)}
        ),
        precision=config.precision.name,
        gpus=config.gpus,
        placement=placement,
        scaling=config.scaling.name,
        global_batch=global_batch,
        batch_per_gpu=batch_per_gpu,
        seed=config.seed,
        repeat=config.repeat,
        optimizer=OptimizerSpec(**{**vars(config.optimizer), "lr_rule": config.optimizer.lr_rule.name}),
        measure=MeasureSpec(**vars(config.measure)),
        cluster=ClusterSpec(
            name=cluster.name,
            device=device,
            cpus_per_gpu=cpus_per_gpu,
            gpu_type=cluster.gpu_type,
            partition=cluster.partition,
            constraint=cluster.constraint,
        ),
        env=dict(sorted(cluster.env.items())),
    )
    site = Site(
        python=str(environments.interpreter(config.framework.name, config.framework.environment, PROJECT)),
        data_root=_data_root(config),
        project=str(PROJECT),
        code_version=machine.code_version(PROJECT),
        oversubscribed=_oversubscribed(config.gpus, cpus_per_gpu, local_gpus) if local else None,
        visible_gpus=local_gpus or None,
        timeout_seconds=60 * cluster.timeout_minutes,
    )
    asked = {f.name: getattr(cluster, f.name) for f in fields(Resources) if hasattr(cluster, f.name)}
    asked.update(
        scheduler=cluster.scheduler.name,
        placement=placement,
        cpus_per_gpu=cpus_per_gpu,
        setup=tuple(cluster.setup),
        srun_args=tuple(cluster.srun_args),
    )
    return Request(spec, site, Resources(**asked))


def _check(config: Config) -> None:
    """Bounds, and combinations that do not exist."""
    at_least = {
        "batch": (config.batch, 1),
        "seed": (config.seed, 0),
        "repeat": (config.repeat, 0),
        "measure.warmup_steps": (config.measure.warmup_steps, 0),
        "measure.steps": (config.measure.steps, 1),
        "measure.block_steps": (config.measure.block_steps, 1),
        "measure.probe_steps": (config.measure.probe_steps, 0),
        "measure.evaluate_samples": (config.measure.evaluate_samples, -1),
        "optimizer.momentum": (config.optimizer.momentum, 0),
        "optimizer.weight_decay": (config.optimizer.weight_decay, 0),
        "optimizer.lr_batch": (config.optimizer.lr_batch, 1),
        "optimizer.warmup_steps": (config.optimizer.warmup_steps, 0),
        "dataset.classes": (config.dataset.classes, 1),
        "dataset.channels": (config.dataset.channels, 1),
        "cluster.cpus_per_gpu": (config.cluster.cpus_per_gpu or 1, 1),
        "cluster.array_parallelism": (config.cluster.array_parallelism or 1, 1),
    }
    for key, (value, bound) in at_least.items():
        if value < bound:
            raise UserError(f"{key}={value}: give a number of at least {bound}")
    above_zero = {
        "optimizer.lr": config.optimizer.lr,
        "cluster.timeout_minutes": config.cluster.timeout_minutes,
        "strategy.options.bucket_mb": getattr(config.strategy.options, "bucket_mb", 1),
    }
    for key, value in above_zero.items():
        if not 0 < value < float("inf"):
            raise UserError(f"{key}={value}: give a number above 0")
    if config.measure.steps % config.measure.block_steps:
        raise UserError(
            f"measure.steps={config.measure.steps} is not a multiple of measure.block_steps="
            f"{config.measure.block_steps}: the last block would be shorter than the others"
        )
    for key in ("mean", "std"):
        if len(getattr(config.dataset, key)) != config.dataset.channels:
            raise UserError(f"dataset.{key} needs one number per channel: {config.dataset.channels}")
    framework, strategy = config.framework, config.strategy.name
    if strategy not in framework.strategies:
        raise UserError(
            f"strategy '{strategy}' is not offered by framework '{framework.name}'; "
            f"{framework.name} offers: {', '.join(framework.strategies)}"
        )
    try:
        network = catalog.network(config.model.name)
    except ValueError as error:
        raise UserError(str(error)) from None
    if config.dataset.image_size < network.min_image_size:
        raise UserError(
            f"model '{network.name}' needs images of at least {network.min_image_size} pixels; "
            f"data set '{config.dataset.name}' has {config.dataset.image_size}"
        )
    _check_cluster(config.cluster)


def _check_cluster(cluster: Cluster) -> None:
    for key in cluster.env:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", str(key)):
            raise UserError(f"cluster.env: '{key}' is not a name of an environment variable")
    if cluster.gpu_type and not cluster.gres:
        raise UserError(f"cluster.gpu_type={cluster.gpu_type} has no effect without cluster.gres; set cluster.gres=gpu")
    if cluster.scheduler is Scheduler.local:
        defaults = Cluster()
        for key in ONLY_SLURM:
            if getattr(cluster, key) != getattr(defaults, key):
                raise UserError(f"cluster.{key} has no effect without a scheduler; leave it out, or take cluster=slurm")


def _batches(config: Config) -> tuple[int, int]:
    """(global batch, batch per GPU) in samples."""
    if config.scaling is Scaling.weak:
        return config.batch * config.gpus, config.batch
    if config.batch % config.gpus:
        below = config.batch // config.gpus * config.gpus
        nearest = f"{below} and {below + config.gpus}" if below else str(config.gpus)
        raise UserError(
            f"batch={config.batch} cannot be divided evenly over gpus={config.gpus} (scaling=strong: `batch` is for "
            f"all GPUs together); the nearest batches that can: {nearest}; or take scaling=weak, where it is per GPU"
        )
    return config.batch, config.batch // config.gpus


def _device(asked: Device, local: bool) -> str:
    if asked is not Device.auto:
        if local and asked is Device.cuda and not machine.gpus():
            raise UserError("cluster.device=cuda, but nvidia-smi lists no GPU here; take cluster.device=cpu or auto")
        return asked.name
    if not local:
        raise UserError("cluster.device=auto can be told apart only on this machine; say cuda or cpu for a cluster")
    return "cuda" if machine.gpus() else "cpu"


def _oversubscribed(gpus: int, cpus_per_gpu: int, local_gpus: Sequence[str]) -> str | None:
    cores = machine.cores()
    if local_gpus and gpus > len(local_gpus):
        return f"{gpus} ranks share {len(local_gpus)} GPU{'s' * (len(local_gpus) > 1)}"
    if gpus * cpus_per_gpu > cores:
        return f"{gpus} ranks x {cpus_per_gpu} threads share {cores} core{'s' * (cores > 1)}"
    return None


def _data_root(config: Config) -> str | None:
    root = Path(config.data.root).expanduser().absolute()
    if config.data.check:
        try:
            locate(config.dataset.name, config.dataset.reader, str(root))
        except DataError as error:
            raise UserError(str(error)) from None
    return str(root)
