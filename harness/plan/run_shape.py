"""Ranks, batches and devices of one point, and its `Site`, filled in from facts of this machine."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.config import value_ranges
from harness.config.schema import Cluster, Config, Device, Scaling, Scheduler
from harness.core.errors import UserError
from harness.core.placement import place
from harness.core.spec import ClusterSpec, Placement, Site
from harness.plan import gpu_sharing, machine, site_resources

_RANK_GB = 0.02  # a Python interpreter alone
PROJECT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Shape:
    """Ranks of a point and what each works on."""

    placement: Placement
    global_batch: int
    batch_per_gpu: int
    device: str  # cpu or cuda
    devices: tuple[machine.Device, ...]  # GPUs of this machine for the ranks; empty on a cluster and without GPUs
    cpus_per_gpu: int


def shape(config: Config) -> Shape:
    """Raises UserError."""
    cluster = config.cluster
    placement = place(config.gpus, cluster.gpus_per_node)
    global_batch, batch_per_gpu = _batches(config)
    local = cluster.scheduler is Scheduler.local
    found = device(cluster.device, local)
    devices = machine.devices() if local and found == "cuda" else ()
    cpus_per_gpu = cluster.cpus_per_gpu or (max(1, machine.cores() // len(devices)) if devices else 1)
    if cluster.gpu_memory_gb is not None and found != "cuda":
        raise UserError(
            f"cluster.gpu_memory_gb={cluster.gpu_memory_gb:g} has no effect on device {found}; leave it null"
        )
    return Shape(placement, global_batch, batch_per_gpu, found, devices, cpus_per_gpu)


def cluster_spec(cluster: Cluster, shape: Shape) -> ClusterSpec:
    return ClusterSpec(
        name=cluster.name,
        device=shape.device,
        cpus_per_gpu=shape.cpus_per_gpu,
        gpu_type=cluster.gpu_type,
        partition=cluster.partition,
        constraint=cluster.constraint,
    )


def site(
    config: Config,
    shape: Shape,
    python: str,
    data_root: str | None,
    folders: Sequence[str],
    max_requeues: int,
    **others: Any,
) -> Site:
    """Build the site of a run. Raises UserError.

    Args:
        config: the point.
        shape: of the point.
        python, data_root: as in Site.
        max_requeues: as in Site, on Slurm.
        folders: folders besides the results that a rank in a container must see.
        others: further fields of Site.
    """
    cluster = config.cluster
    local = cluster.scheduler is Scheduler.local
    results = str(Path(config.results).expanduser().absolute())
    return Site(
        python=python,
        data_root=data_root,
        project=str(PROJECT),
        code_version=machine.code_version(PROJECT),
        oversubscribed=_oversubscribed(config.gpus, shape.cpus_per_gpu, shape.devices) if local else None,
        visible_gpus=tuple(each.name for each in shape.devices) or None,
        # Slurm counts whole minutes.
        timeout_seconds=60 * (cluster.timeout_minutes if local else math.ceil(cluster.timeout_minutes)),
        heartbeat_seconds=value_ranges.heartbeat_seconds(config),
        signal_seconds=cluster.signal_seconds,
        max_requeues=0 if local else max_requeues,
        max_restarts=config.checkpoint.max_restarts,
        keep_checkpoint=config.checkpoint.keep,
        bind_cpus=_bind_cpus(config, shape.cpus_per_gpu),
        link_gb_per_s=cluster.link_gb_per_s,
        gpu_link_gb_per_s=cluster.gpu_link_gb_per_s,
        peak_tflops=dict(sorted(cluster.peak_tflops.items())),
        container=site_resources.container(cluster.container, str(PROJECT), (results, *folders)),
        stage_environment=cluster.stage_environment.name,
        **others,
    )


def device(asked: Device, local: bool) -> str:
    """Return cpu or cuda. Raises UserError."""
    if local and asked is not Device.cpu and (entry := machine.unknown_device()):
        raise UserError(
            f"CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']}: '{entry}' is none of the GPUs and MIG devices "
            "that `nvidia-smi -L` lists here; correct or unset it, or use cluster.device=cpu"
        )
    if asked is not Device.auto:
        if local and asked is Device.cuda and not machine.gpus():
            raise UserError("cluster.device=cuda, but nvidia-smi lists no GPU here; use cluster.device=cpu or auto")
        return asked.name
    if not local:
        raise UserError("cluster.device=auto works only on this machine; set cuda or cpu for a cluster")
    return "cuda" if machine.gpus() else "cpu"


def _batches(config: Config) -> tuple[int, int]:
    """Return (global batch, batch per GPU) in samples."""
    if config.scaling is Scaling.weak:
        return config.batch * config.gpus, config.batch
    if config.batch % config.gpus:
        below = config.batch // config.gpus * config.gpus
        nearest = f"{below} and {below + config.gpus}" if below else str(config.gpus)
        raise UserError(
            f"batch={config.batch} cannot be divided evenly over gpus={config.gpus} (scaling=strong: `batch` is for "
            f"all GPUs together); the nearest batches that can: {nearest}; or use scaling=weak, where it is per GPU"
        )
    return config.batch, config.batch // config.gpus


def _bind_cpus(config: Config, cpus_per_gpu: int) -> bool:
    cores, needed = len(os.sched_getaffinity(0)), config.gpus * cpus_per_gpu
    if config.cluster.bind_cpus and needed > cores:
        raise UserError(
            f"cluster.bind_cpus=true: {config.gpus} ranks x {cpus_per_gpu} need {needed} dedicated cores, this "
            f"machine has {cores}; use fewer gpus or cluster.cpus_per_gpu, or bind_cpus=false"
        )
    return config.cluster.bind_cpus


def _oversubscribed(gpus: int, cpus_per_gpu: int, devices: Sequence[machine.Device]) -> str | None:
    cores = machine.cores()
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3
    if gpus * _RANK_GB > memory_gb:
        raise UserError(
            f"gpus={gpus}: this machine has {cores} core{'s' * (cores > 1)} and {memory_gb:.0f} GiB of memory, too "
            "little to start as many processes; use fewer, or cluster=slurm"
        )
    if why := gpu_sharing.sharing_note(gpus, devices):
        return why
    if gpus * cpus_per_gpu > cores:
        return f"{gpus} ranks x {cpus_per_gpu} threads share {cores} core{'s' * (cores > 1)}"
    return None
