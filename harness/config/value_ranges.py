"""Valid ranges of a point's values, and values that exclude each other."""

from __future__ import annotations

from dataclasses import replace

from harness.config import cluster_checks, emulated
from harness.config.schema import Config, Dataset, Measure
from harness.config.workload_schema import Kind
from harness.core.data_location import SHARDS, SYNTHETIC, TEXT
from harness.core.errors import UserError
from harness.core.measuring.precision import FEWEST, FEWEST_TO_STOP
from harness.core.measuring.steady_state import WINDOW
from models import catalog

# As in harness/worker/test_time_augmentation.py.
VIEWS = (1, 2, 6)
HEARTBEAT_SECONDS = 600.0
FAULTS = ("none", "kill_rank", "kill_node", "slow_rank", "hang")


def check(config: Config) -> None:
    """Raise UserError for the first mistake found."""
    _check_kind(config.dataset)
    at_least = {
        "batch": (config.batch, 1),
        "seed": (config.seed, 0),
        "trace_steps": (config.trace_steps, 1),
        "repeat": (config.repeat, 0),
        "measure.warmup_steps": (config.measure.warmup_steps, 0),
        "measure.warmup_limit_steps": (_or(config.measure.warmup_limit_steps, 0), 0),
        "measure.steps": (config.measure.steps, 1),
        "measure.block_steps": (config.measure.block_steps, 1),
        "measure.probe_steps": (config.measure.probe_steps, 0),
        "measure.probe_rounds": (config.measure.probe_rounds, 1),
        "measure.evaluate_samples": (config.measure.evaluate_samples, -1),
        "dataset.crop_pixels": (config.dataset.crop_pixels, 0),
        "measure.evaluate_every_samples": (config.measure.evaluate_every_samples, 0),
        "optimizer.momentum": (config.optimizer.momentum, 0),
        "optimizer.weight_decay": (config.optimizer.weight_decay, 0),
        "optimizer.lr_batch": (config.optimizer.lr_batch, 1),
        "optimizer.warmup_steps": (config.optimizer.warmup_steps, 0),
        "data.shuffle_buffer": (config.data.shuffle_buffer, 1),
        "data.workers": (config.data.workers, 0),
        "data.prefetch": (config.data.prefetch, 1),
        "dataset.classes": (config.dataset.classes, 1),
        "dataset.context": (config.dataset.context, 0),
        # Text has no channels.
        "dataset.channels": (config.dataset.channels, 0 if config.dataset.context else 1),
        "cluster.cpus_per_gpu": (config.cluster.cpus_per_gpu or 1, 1),
        "cluster.array_parallelism": (_or(config.cluster.array_parallelism, 1), 1),
        "cluster.max_submit": (_or(config.cluster.max_submit, 1), 1),
        "cluster.signal_seconds": (config.cluster.signal_seconds, 1),
        "checkpoint.interval_steps": (config.checkpoint.interval_steps, 0),
        "checkpoint.max_requeues": (config.checkpoint.max_requeues, 0),
        "checkpoint.max_restarts": (config.checkpoint.max_restarts, 0),
        "strategy.options.powersgd_rank": (getattr(config.strategy.options, "powersgd_rank", 1), 1),
        "strategy.options.sync_every": (getattr(config.strategy.options, "sync_every", 1), 1),
        "strategy.options.servers": (_or(getattr(config.strategy.options, "servers", None), 1), 1),
        "strategy.options.stages": (_or(getattr(config.strategy.options, "stages", None), 1), 1),
        "strategy.options.microbatches": (getattr(config.strategy.options, "microbatches", 1), 1),
        "strategy.options.degree": (_or(getattr(config.strategy.options, "degree", None), 1), 1),
        "strategy.options.fusion_mb": (_or(getattr(config.strategy.options, "fusion_mb", None), 0), 0),
        "strategy.options.staleness": (getattr(config.strategy.options, "staleness", 0), 0),
        "fault.step": (config.fault.step, 0),
        "fault.rank": (config.fault.rank, 0),
        "fault.seconds": (config.fault.seconds, 0),
    }
    for key, (value, bound) in at_least.items():
        if value < bound:
            raise UserError(f"{key}={value}: give a number of at least {bound}")
    heartbeat = heartbeat_seconds(config)
    above_zero = {
        "optimizer.lr": config.optimizer.lr,
        "optimizer.epsilon": config.optimizer.epsilon,
        "optimizer.trust": config.optimizer.trust,
        "cluster.timeout_minutes": config.cluster.timeout_minutes,
        "cluster.gpu_memory_gb": _or(config.cluster.gpu_memory_gb, 1),
        "cluster.link_gb_per_s": _or(config.cluster.link_gb_per_s, 1),
        "cluster.gpu_link_gb_per_s": _or(config.cluster.gpu_link_gb_per_s, 1),
        "cluster.memory_gb_per_s": _or(config.cluster.memory_gb_per_s, 1),
        **{f"cluster.peak_tflops.{name}": value for name, value in config.cluster.peak_tflops.items()},
        "heartbeat": 1 if heartbeat is None else heartbeat,
        "measure.probe_limit": config.measure.probe_limit,
        "budget_node_hours": _or(config.budget_node_hours, 1),
        "strategy.options.bucket_mb": _or(getattr(config.strategy.options, "bucket_mb", None), 1),
        "strategy.options.first_bucket_mb": _or(getattr(config.strategy.options, "first_bucket_mb", None), 1),
        "strategy.options.cycle_ms": _or(getattr(config.strategy.options, "cycle_ms", None), 1),
    }
    for key, value in above_zero.items():
        if not 0 < value < float("inf"):
            raise UserError(f"{key}={value}: give a number above 0")
    if config.workload.kind is Kind.catalog:
        _check_length(config.measure)
    else:  # whose warm-up has a fixed length
        _check_length(replace(config.measure, warmup_limit_steps=None))
    for key in ("mean", "std"):
        if len(getattr(config.dataset, key)) != config.dataset.channels:
            raise UserError(f"dataset.{key} needs one number per channel: {config.dataset.channels}")
    try:
        network = catalog.network(config.model.name)
    except ValueError as error:
        raise UserError(str(error)) from None
    if not config.dataset.context and config.dataset.image_size < network.min_image_size:
        raise UserError(
            f"model '{network.name}' needs images of at least {network.min_image_size} pixels; "
            f"data set '{config.dataset.name}' has {config.dataset.image_size}"
        )
    _check_augmentation(config.dataset)
    _check_views(config)
    cluster_checks.check(config.cluster)
    _check_fault(config)
    emulated.check(config)


def heartbeat_seconds(config: Config) -> float | None:
    """Return the heartbeat. A program may print nothing for as long as it likes, so its output is none by itself.

    Raises UserError for a text other than 'auto'.
    """
    if config.heartbeat == "auto":
        return None if config.workload.pattern is not None else HEARTBEAT_SECONDS
    if isinstance(config.heartbeat, str):
        raise UserError(f"heartbeat={config.heartbeat}: give a number of seconds, null or auto")
    return config.heartbeat if config.heartbeat is None else float(config.heartbeat)


def _check_length(measure: Measure) -> None:
    """Raise UserError if the run is too short for its own rules (docs/method.md)."""
    block, limit, precision = measure.block_steps, measure.warmup_limit_steps, measure.precision
    if measure.steps % block:
        raise UserError(
            f"measure.steps={measure.steps} is not a multiple of measure.block_steps={block}: the last block would be "
            "shorter than the others"
        )
    if limit is not None and limit < measure.warmup_steps:
        raise UserError(
            f"measure.warmup_limit_steps={limit} is below measure.warmup_steps={measure.warmup_steps}, the least; give "
            "more, or null for a warm-up of a fixed length"
        )
    if limit is not None and measure.warmup_steps < limit < WINDOW * block:
        raise UserError(
            f"measure.warmup_limit_steps={limit}: it takes {WINDOW} blocks of measure.block_steps={block} to "
            f"see whether step time is stationary; give at least {WINDOW * block}, or null for a fixed warm-up"
        )
    if precision is None:
        return
    if not 0 < precision < 1:
        raise UserError(
            f"measure.precision={precision:g}: give a fraction of the mean step time between 0 and 1, such as 0.02, "
            "or null for all of measure.steps (fp32, tf32, bf16 and fp16 are values of precision=, without measure.)"
        )
    if measure.steps < FEWEST * block:
        raise UserError(
            f"measure.steps={measure.steps} with measure.precision={precision:g}: an interval of the mean needs "
            f"{FEWEST} blocks of measure.block_steps={block}; give at least {FEWEST * block} steps, or "
            "measure.precision=null"
        )


def _check_kind(dataset: Dataset) -> None:
    """Raise UserError if a data set does not hold either images or text."""
    if bool(dataset.context) == bool(dataset.image_size):
        raise UserError(
            f"data set '{dataset.name}' has dataset.context={dataset.context} and dataset.image_size="
            f"{dataset.image_size}: text has a context and an image_size of 0, images the other way round"
        )
    if dataset.context and (dataset.channels or dataset.augment):
        raise UserError(f"data set '{dataset.name}' is text (dataset.context): set channels to 0 and augment to false")
    if dataset.reader not in (SYNTHETIC, SHARDS) and bool(dataset.context) != (dataset.reader == TEXT):
        raise UserError(
            f"dataset.context={dataset.context} with reader '{dataset.reader}': for text take dataset.reader={TEXT} "
            f"or {SHARDS}, for images a context of 0"
        )


def _check_augmentation(dataset: Dataset) -> None:
    asked = {key: getattr(dataset, key) for key in ("crop_pixels", "crop_reflect", "alternating_flip")}
    if not dataset.augment:
        for key, value in asked.items():
            if value != getattr(Dataset(), key):
                raise UserError(
                    f"dataset.{key}={str(value).lower()} has no effect with dataset.augment=false; leave it at "
                    f"{str(getattr(Dataset(), key)).lower()}, or augment"
                )
    elif dataset.crop_pixels >= dataset.image_size:
        raise UserError(
            f"dataset.crop_pixels={dataset.crop_pixels}: images have {dataset.image_size} pixels; give fewer than these"
        )
    if dataset.alternating_flip and dataset.reader == SHARDS:
        raise UserError(
            f"dataset.alternating_flip=true is not offered with dataset.reader={SHARDS}, where each rank counts epochs "
            "of its own; leave it at false"
        )


def _check_views(config: Config) -> None:
    views = config.measure.evaluate_views
    if views not in VIEWS:
        raise UserError(
            f"measure.evaluate_views={views}: give 1 (each image as it is), 2 (and its mirror image) or 6 (and both "
            "moved by a pixel, two ways)"
        )
    if views > 1 and (config.dataset.context or not config.measure.evaluate_samples):
        why = "text has no mirror image" if config.dataset.context else "measure.evaluate_samples=0 scores nothing"
        raise UserError(f"measure.evaluate_views={views}: {why}; leave it at 1")


def _check_fault(config: Config) -> None:
    fault = config.fault
    if fault.name not in FAULTS:
        raise UserError(f"fault.name={fault.name}: there are {', '.join(FAULTS)}")
    if fault.name == "none":
        return
    steps = config.measure.warmup_steps + config.measure.steps
    if config.measure.precision is not None:
        # The earliest possible end.
        steps = config.measure.warmup_steps + min(config.measure.steps, FEWEST_TO_STOP * config.measure.block_steps)
    if fault.rank >= config.gpus:
        raise UserError(f"fault.rank={fault.rank}: with gpus={config.gpus} there are ranks 0 to {config.gpus - 1}")
    if fault.step >= steps:
        if config.measure.precision is not None:
            raise UserError(
                f"fault.step={fault.step} may never come: with measure.precision={config.measure.precision:g} the run "
                f"may end after {steps} steps; take an earlier step, or measure.precision=null"
            )
        raise UserError(
            f"fault.step={fault.step} never comes: the run has {steps} steps (measure.warmup_steps + measure.steps)"
        )
    if fault.name == "slow_rank" and not fault.seconds > 0:
        raise UserError(f"fault.seconds={fault.seconds}: give the delay of each step of the slow rank")
    if fault.name == "hang" and config.heartbeat is None:
        raise UserError("fault=hang with heartbeat=null would hang until the wall limit; set heartbeat=<seconds>")


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
