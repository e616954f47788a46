"""Input pipelines: which framework offers which, how `auto` is resolved, and which options take effect."""

from __future__ import annotations

import functools
import math
import os
import subprocess
from dataclasses import replace

from harness.config.framework_capabilities import CAPABILITIES
from harness.config.schema import Config, Data, Pipeline
from harness.core.data_location import IMAGE_FOLDER, SHARDS
from harness.core.errors import UserError
from harness.core.gpu_types import builder
from harness.core.spec import DALI, DEVICE, FRAMEWORK, HARNESS, InputSpec

GIB = 2**30
# `auto` fills at most this share of a GPU's memory; and this many GB if the memory is unknown.
SHARE_OF_MEMORY, UNKNOWN_MEMORY_GB = 0.1, 1.0
# In eager PyTorch, a thread that makes batches competes with the step for Python's GIL.
HELD_UP = "pytorch"
PINNING = "pytorch"  # the others pin memory on their own
ON_DEVICE = (DEVICE, DALI)  # pipelines whose batches do not come from the host
ABSENT = 3  # exit code
QUESTION = (
    "import sys; from importlib.util import find_spec; "
    f"sys.exit(0 if find_spec('nvidia') and find_spec('nvidia.dali') else {ABSENT})"
)


def resolved(config: Config, device: str | None, gpu_memory_gb: float | None) -> tuple[Config, str]:
    """Resolve data.pipeline=auto, so that the run_id is that of a concrete pipeline.

    Args:
        device: type of the ranks' device; None if unknown, which is rejected elsewhere
        gpu_memory_gb: memory of each GPU in 2^30 bytes; None if unknown

    Returns:
        The configuration, and a sentence for the plan; empty if there was nothing to resolve.
    """
    data = config.data
    if data.pipeline is not Pipeline.auto:
        return config, ""
    chosen, why = Pipeline.harness, ""
    if device == "cuda" and config.framework.name == HELD_UP and config.dataset.reader != SHARDS and data.workers:
        against = _against_device(config, gpu_memory_gb)
        chosen = Pipeline.framework if against else Pipeline.device
        here = f"the samples of data set '{config.dataset.name}' fit on each GPU"
        beside = f"worker processes prepare the batches, since {against}"
        why = f"data.pipeline=auto is {chosen.value}: {beside if against else here}"
    return replace(config, data=replace(data, pipeline=chosen)), why


def _against_device(config: Config, gpu_memory_gb: float | None) -> str:
    """Return why `auto` does not keep all samples on the device; empty if it does."""
    data, dataset, default = config.data, config.dataset, Data()
    for key in ("workers", "prefetch", "pin"):
        if (asked := getattr(data, key)) != getattr(default, key):
            return f"data.{key}={str(asked).lower()} is for them"
    if dataset.reader == IMAGE_FOLDER:
        return f"data set '{dataset.name}' consists of image files, which are decoded for each batch"
    if dataset.train_samples < 1:
        return f"the configuration of data set '{dataset.name}' does not say how many samples it has"
    shape = (dataset.context,) if dataset.context else (dataset.image_size, dataset.image_size, dataset.channels)
    size = dataset.train_samples * math.prod(shape) / GIB
    most = UNKNOWN_MEMORY_GB if gpu_memory_gb is None else SHARE_OF_MEMORY * gpu_memory_gb
    if size <= most:
        return ""
    known = (
        "a GPU's memory is not known (cluster.gpu_memory_gb)"
        if gpu_memory_gb is None
        else f"{SHARE_OF_MEMORY:.0%} of it"
    )
    return f"the samples of data set '{dataset.name}' are {size:.1f} GB, and at most {most:.1f} GB go on a GPU: {known}"


def unsupported(config: Config) -> str | None:
    """Return why the pipeline is unsupported, or None. `config` comes from `resolved`."""
    data, framework = config.data, config.framework.name
    offered = CAPABILITIES[framework].pipelines
    asked, default = data.pipeline.value, Data()
    if asked not in offered:
        why = f", as '{framework}' has no loader of its own" if asked == FRAMEWORK else ""
        return f"data.pipeline={asked} is not offered by framework '{framework}'{why}; it offers: {', '.join(offered)}"
    if asked != HARNESS and config.dataset.reader == SHARDS:
        return (
            f"data.pipeline={asked} is not offered with dataset.reader={SHARDS}, which each rank reads in sequence; "
            f"take data.pipeline={HARNESS}"
        )
    if asked == HARNESS and data.workers > 1:
        return (
            f"data.workers={data.workers}: data.pipeline={HARNESS} has one thread (1), or makes batches in the rank "
            f"itself (0); data.pipeline={FRAMEWORK} has more"
        )
    if asked == DALI and config.dataset.reader != IMAGE_FOLDER:
        return (
            f"data.pipeline={DALI} decodes image files (dataset.reader={IMAGE_FOLDER}), and data set "
            f"'{config.dataset.name}' has dataset.reader={config.dataset.reader}; take data.pipeline={HARNESS}"
        )
    if asked == DALI and config.dataset.crop_reflect:
        return (
            f"dataset.crop_reflect=true: NVIDIA DALI pads images with black only (data.pipeline={DALI}); "
            f"take data.pipeline={HARNESS}, or leave it at false"
        )
    if asked == DALI and not data.workers:
        return f"data.workers=0: data.pipeline={DALI} works with threads of its own; give at least 1"
    if asked == DEVICE and data.workers != default.workers:
        return f"data.workers={data.workers} has no effect with data.pipeline={DEVICE}; leave it at {default.workers}"
    if (asked == DEVICE or not data.workers) and data.prefetch != default.prefetch:
        where = f"data.pipeline={DEVICE}" if asked == DEVICE else "data.workers=0"
        return f"data.prefetch={data.prefetch} has no effect with {where}; leave it at {default.prefetch}"
    return None


def spec(config: Config, device: str) -> InputSpec:
    """Return the pipeline without options that have no effect. device: type of the ranks' device. Raises UserError."""
    data, asked = config.data, config.data.pipeline.value
    if not data.pin and (config.framework.name != PINNING or device != "cuda" or asked in ON_DEVICE):
        raise UserError(
            f"data.pin=false has no effect with framework={config.framework.name}, data.pipeline={asked} on device "
            f"{device}; it is for {PINNING} on a GPU, with batches that come from the host: leave it at true"
        )
    if asked != DEVICE:
        return InputSpec(asked, data.workers, data.prefetch if data.workers else 0, data.pin)
    if config.dataset.train_samples < 1:
        raise UserError(
            f"data.pipeline={DEVICE}: the configuration of data set '{config.dataset.name}' does not say how many "
            "samples a device would hold; set dataset.train_samples"
        )
    return InputSpec(asked, workers=0, prefetch=0, samples=config.dataset.train_samples)


def check_package(config: Config, python: str) -> None:
    """Raise UserError if the run needs NVIDIA DALI and its interpreter `python` lacks it.

    Containers and environments that a job loads first are checked by the run itself.
    """
    cluster = config.cluster
    if config.data.pipeline.value != DALI or cluster.container.runtime or cluster.modules or cluster.setup:
        return
    if not _has_dali(python):
        raise UserError(
            f"data.pipeline={DALI}: NVIDIA DALI is not in the environment of {python}; build that with `DALI=1 "
            f"{builder('pytorch')}`, or install nvidia-dali-cuda120 (CUDA 12) or -cuda130 there; or take "
            f"data.pipeline={HARNESS}"
        )


@functools.lru_cache
def _has_dali(python: str) -> bool:
    """Return True also if the interpreter does not answer: the run reports missing packages itself."""
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONHOME", "VIRTUAL_ENV")}
    try:
        return subprocess.run([python, "-c", QUESTION], capture_output=True, env=env, timeout=60).returncode != ABSENT
    except (OSError, subprocess.TimeoutExpired):
        return True
