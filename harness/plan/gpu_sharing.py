"""Ranks that share a GPU, as far as the plan knows it: on this machine, whose GPUs it sees."""

from __future__ import annotations

from collections.abc import Sequence

from harness.config.performance_options import GRAPH_MODES
from harness.config.schema import Compress, Config
from harness.core.errors import UserError
from harness.core.strategies import NCCL, PLAIN, info, names, offered_by
from harness.plan.machine import Device


def shared(gpus: int, devices: Sequence[Device]) -> bool:
    """Whether two of so many ranks have the same GPU, or parts of it. devices: handed out in turn."""
    boards = {devices[rank % len(devices)].board for rank in range(gpus)} if devices else set()
    return bool(boards) and len(boards) < gpus


def words(gpus: int, devices: Sequence[Device]) -> str | None:
    """Why ranks that share GPUs say nothing about scaling; None where they do not."""
    if not shared(gpus, devices):
        return None
    boards = len({device.board for device in devices})
    of_gpus = f"{boards} GPU{'s' * (boards > 1)}"
    if gpus > len(devices):
        parts = len(devices) > boards
        return f"{gpus} ranks share {f'{len(devices)} parts of ' if parts else ''}{of_gpus}"
    return f"{gpus} ranks have parts of {of_gpus} (MIG)"


def by_gloo(config: Config, devices: Sequence[Device]) -> bool:
    """Whether the ranks share GPUs, and gloo is to carry what NCCL refuses to. Raises UserError where nothing can."""
    framework, strategy = config.framework, config.strategy
    if not shared(config.gpus, devices) or not _over_nccl(strategy.name, framework.name):
        return False
    most = len({device.board for device in devices})
    why = (
        f"gpus={config.gpus} on the {most} GPU{'s' * (most > 1)} of this machine: ranks share a GPU, which NCCL refuses"
    )
    fewer = f"take gpus={most}" + (" or fewer" if most > 1 else "")
    if framework.name != "pytorch" or not info(strategy.name).gloo_on_gpus:
        offered = [name for name in offered_by(framework.name) if name != PLAIN]
        others = ", ".join(name for name in offered if not _over_nccl(name, framework.name))
        instead = f"strategies that go without NCCL ({others})"
        gloo = "" if framework.name == "pytorch" else "framework=pytorch with "
        raise UserError(
            f"{why}, and strategy '{strategy.name}' of framework '{framework.name}' needs it; {fewer}, {instead}, or "
            f"{gloo}strategy={' or '.join(names(lambda row: row.gloo_on_gpus))}, which then go over gloo"
        )
    asked = [option for option, given in _not_by_gloo(config).items() if given]
    if asked:
        raise UserError(
            f"{why}; gloo, which carries their gradients instead, goes without {asked[0]}; {fewer}, or leave it out"
        )
    return True


def _over_nccl(strategy: str, framework: str) -> bool:
    return info(strategy).frameworks.get(framework) == NCCL


def _not_by_gloo(config: Config) -> dict[str, bool]:
    """Options that have been shown over NCCL, or on CPUs, only; and whether they are asked for."""
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
