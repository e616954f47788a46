"""What the plan says of parameter servers before anything is started: which requests there cannot be."""

from __future__ import annotations

from harness.plan import place
from harness.schema import Config

STRATEGIES = ("ps_sync", "ps_async", "ps_mixed", "ssp")


def unsupported(config: Config) -> str | None:
    """Why there cannot be these servers; None where there can. Raises UserError where the ranks cannot be placed."""
    if config.precision.name == "fp16":
        return (
            f"precision=fp16 is not offered by strategy '{config.strategy.name}': a rank whose gradients overflow "
            "skips its step, and the others do not; take fp32 or bf16"
        )
    if config.optimizer.name.name != "sgd":
        return (
            f"optimizer.name={config.optimizer.name.name} is not offered by strategy '{config.strategy.name}': "
            "its servers step with sgd"
        )
    servers, nodes = config.strategy.options.servers, place(config.gpus, config.cluster.gpus_per_node).nodes
    if servers is not None and servers > nodes:
        return (
            f"strategy.options.servers={servers} are more servers than nodes: gpus={config.gpus} take "
            f"{nodes} node{'s' * (nodes > 1)}, with one server at most on each; null makes it one per node"
        )
    return None
