"""Checks of parameter servers, made while planning."""

from __future__ import annotations

from harness.config.schema import Config, Scheduler, ServerPlacement
from harness.core.placement import place


def unsupported(config: Config) -> str | None:
    """Return why these servers are unsupported, or None. Raises UserError if the ranks cannot be placed."""
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
    if config.strategy.options.placement is ServerPlacement.own_nodes:
        return _own_nodes_unsupported(config)
    servers, nodes = config.strategy.options.servers, place(config.gpus, config.cluster.gpus_per_node).nodes
    if servers is not None and servers > nodes:
        return (
            f"strategy.options.servers={servers} are more servers than nodes: gpus={config.gpus} take "
            f"{nodes} node{'s' * (nodes > 1)}, with one server at most on each; null makes it one per node, and "
            "strategy.options.placement=own_nodes gives servers nodes of their own"
        )
    return None


def _own_nodes_unsupported(config: Config) -> str | None:
    asked, servers = "strategy.options.placement=own_nodes", config.strategy.options.servers
    if servers is not None and servers > config.gpus:
        return f"strategy.options.servers={servers} are more servers than ranks: with gpus={config.gpus} take fewer"
    if config.framework.name == "mxnet":
        return f"{asked} is not offered by framework 'mxnet', whose KVStore has its own servers; take beside"
    if config.pack:
        return f"{asked} is not offered with pack=true: packed runs share their nodes; take pack=false, or beside"
    if config.cluster.scheduler is Scheduler.allocation:
        return f"{asked} is not offered inside an allocation; take a cluster with scheduler=slurm, or beside"
    return None
