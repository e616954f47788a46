"""Detects ranks that share a GPU on this machine, whose GPUs are visible to the planner."""

from __future__ import annotations

from collections.abc import Sequence

from harness.config.performance_options import GRAPH_MODES
from harness.config.schema import Compress, Config
from harness.core.errors import UserError
from harness.core.strategies import NCCL, PLAIN, info, names, offered_by
from harness.plan.machine import Device


def is_shared(gpus: int, devices: Sequence[Device]) -> bool:
    """Return whether two of `gpus` ranks share a GPU or parts of one. devices are assigned round-robin."""
    boards = {devices[rank % len(devices)].board for rank in range(gpus)} if devices else set()
    return bool(boards) and len(boards) < gpus


def sharing_note(gpus: int, devices: Sequence[Device]) -> str | None:
    """Describe how ranks share GPUs, which invalidates a scaling result. None if they do not."""
    if not is_shared(gpus, devices):
        return None
    boards = len({device.board for device in devices})
    of_gpus = f"{boards} GPU{'s' * (boards > 1)}"
    if gpus > len(devices):
        parts = len(devices) > boards
        return f"{gpus} ranks share {f'{len(devices)} parts of ' if parts else ''}{of_gpus}"
    return f"{gpus} ranks use parts of {of_gpus} (MIG)"


def needs_gloo(config: Config, devices: Sequence[Device]) -> bool:
    """Return whether gloo must replace NCCL because ranks share GPUs. Raises UserError if neither works."""
    framework, strategy = config.framework, config.strategy
    if not is_shared(config.gpus, devices) or not _over_nccl(strategy.name, framework.name):
        return False
    most = len({device.board for device in devices})
    why = (
        f"gpus={config.gpus} on the {most} GPU{'s' * (most > 1)} of this machine: "
        "ranks share a GPU, which NCCL does not support"
    )
    fewer = f"use gpus={most}" + (" or fewer" if most > 1 else "")
    if framework.name != "pytorch" or not info(strategy.name).gloo_on_gpus:
        offered = [name for name in offered_by(framework.name) if name != PLAIN]
        others = ", ".join(name for name in offered if not _over_nccl(name, framework.name))
        instead = f"a strategy that does not use NCCL ({others})"
        gloo = "" if framework.name == "pytorch" else "framework=pytorch with "
        raise UserError(
            f"{why}, and strategy '{strategy.name}' of framework '{framework.name}' needs it; {fewer}, {instead}, or "
            f"{gloo}strategy={' or '.join(names(lambda row: row.gloo_on_gpus))}, which then uses gloo"
        )
    asked = [option for option, given in _not_with_gloo(config).items() if given]
    if asked:
        raise UserError(f"{why}; gloo, used instead, does not support {asked[0]}; {fewer}, or leave that option out")
    return True


def _over_nccl(strategy: str, framework: str) -> bool:
    return info(strategy).frameworks.get(framework) == NCCL


def _not_with_gloo(config: Config) -> dict[str, bool]:
    """Options validated only over NCCL or on CPUs, and whether they are requested."""
    framework, strategy = config.framework.options, config.strategy.options
    found = {
        "framework.options.cuda_graph=true": bool(framework.cuda_graph),
        "framework.options.half_weights=true": bool(framework.half_weights),
        f"framework.options.compile_mode={framework.compile_mode.value}": framework.compile_mode.value in GRAPH_MODES,
    }
    if config.strategy.name == "allreduce":
        found[f"strategy.options.compress={strategy.compress.name}"] = strategy.compress is not Compress.none
        found["strategy.options.overlap=false"] = not strategy.overlap
    return found
