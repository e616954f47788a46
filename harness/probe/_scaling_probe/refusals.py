"""Why a training cannot be measured, and what to do about it; None if it can."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from _scaling_probe import tensorflow_hooks
from _scaling_probe.interval import HandedOut
from _scaling_probe.settings import Settings

NAME_THE_STEP = (
    "name the function that takes one step, workload.step=<module>:<function>, or use scaling_probe.steps() in its loop"
)
CAPTURED = f"the script captures its step in a CUDA graph, whose replays cannot be seen: {NAME_THE_STEP}"


def several_optimisers(seen: Mapping[str, int]) -> str:
    """seen: steps by the name of an optimiser."""
    others = ", ".join(f"{name} ({times} steps)" for name, times in seen.items())
    return (
        f"several optimisers step in turn, so what one training step is cannot be known; seen: {others}. Name the one "
        "whose step ends a training step, workload.step=<its class>, or a function that is called once in each, "
        "workload.step=<module>:<function>"
    )


def too_few_steps(settings: Settings, steps: int) -> str:
    return (
        f"the script ended after {steps} steps, before a block was measured; it must take at least "
        f"{settings.warmup_steps + settings.block_steps}: let it train longer, or lower measure.warmup_steps or "
        "measure.block_steps"
    )


def wrong_world_size(settings: Settings, world_size: int | None, library: str | None) -> str | None:
    """world_size: as the script's framework, or `library`, sees it; None: unknown."""
    expected = settings.world_size
    if world_size in (None, expected):
        return None
    if world_size == 1:
        return (
            f"{expected} processes each train alone: no library for distributed training is initialised in the "
            "script. Let it use the RANK and WORLD_SIZE that it is given, as under torchrun "
            "(torch.distributed.init_process_group and DistributedDataParallel), or run it with gpus=1"
        )
    return (
        f"{library} sees a world of {world_size}, the run has {expected} processes: let the script take RANK and "
        "WORLD_SIZE from its environment, as under torchrun"
    )


def other_replicas(settings: Settings, device: str) -> str | None:
    """One process of TensorFlow may drive several GPUs."""
    found, start = tensorflow_hooks.replicas(), settings.start
    if found is None or "batch_per_gpu" not in start or (found[0] == 1 and device == "cpu"):
        return None
    gpus = start["global_batch"] // start["batch_per_gpu"]
    if found[0] == gpus:
        return None
    return f"TensorFlow's strategy has {found[0]} replicas, the run has {gpus} GPUs: let it use all GPUs that it sees"


def other_samples(settings: Settings, handed_out: HandedOut) -> str | None:
    given, expected = handed_out.samples(settings.samples), settings.samples
    if given is None or given == expected:
        return None
    return (
        f"{given:g} {settings.unit} per step were handed out on this rank ({handed_out.batches} batches), but "
        f"workload.samples_per_step={settings.samples_per_step} on {settings.world_size} ranks is "
        f"{expected:g}: set workload.samples_per_step to what all ranks together train on in one optimiser step, "
        "or let the script use {batch_per_gpu}"
    )


def no_step(settings: Settings, seen: Mapping[str, int]) -> str:
    """Why a script that ended showed no step."""
    if settings.step and seen:
        return (
            f"no step of workload.step={settings.step} was seen; seen were {', '.join(seen)}: name one of these, or a "
            "function as <module>:<function>"
        )
    if settings.step:
        return f"the script ended and workload.step={settings.step} was never called: check its name"
    if "torch" not in sys.modules:
        return (
            "the script ended and showed no training step; looked for optimisers of PyTorch, which it did not import: "
            "use scaling_probe.steps() in its loop, or workload.pattern for its output"
        )
    return (
        "the script ended and showed no training step: PyTorch was imported, but no optimiser stepped in this process "
        f"(a compiled step and child processes are not seen): {NAME_THE_STEP}"
    )
