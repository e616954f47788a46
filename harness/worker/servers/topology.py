"""Assigns workers of the parameter servers to ranks and the servers to nodes, for every framework."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import Optional, Sequence

from harness.core.rendezvous import Rendezvous
from harness.core.spec import RunSpec
from harness.core.strategies import BOUNDED, SYNCHRONOUS, info
from harness.worker.servers.parameters import Settings


@dataclass(frozen=True)
class Topology:
    """mode: of the servers. worker: this rank's number among their workers; None if another rank of its node is one.
    inside_nodes: one worker represents all ranks of its node. pushed, samples: samples per push and per update. here:
    this rank, the first of its node, has a colocated server."""

    spec: RunSpec
    mode: str
    inside_nodes: bool
    node: int
    nodes: int
    per_node: int
    worker: Optional[int]
    workers: int
    pushed: int
    samples: int
    servers: int
    here: bool

    def scaled(self, learning_rate: float) -> float:
        """Scale the global batch's learning rate to the samples of one update, by the rule of OptimizerSpec; an
        asynchronous update is based on one worker's samples."""
        optimizer = self.spec.optimizer
        return learning_rate * (optimizer.scaled(self.samples) / optimizer.scaled(self.spec.global_batch))

    def settings(self) -> Settings:
        return settings(self.spec, self.workers)

    def describe(self, standalone_nodes: Sequence[str] = ()) -> str:
        """Return a description of the servers for the start event, e.g. "2 on 2 nodes, asynchronous". standalone_nodes:
        the servers' nodes if they run without ranks."""
        how = self.mode
        if self.mode == BOUNDED:
            how = f"staleness at most {self.spec.strategy_options['staleness']}"
        elif self.inside_nodes:
            how = "synchronous inside a node, asynchronous between nodes"
        on = _nodes_in_words(standalone_nodes) if standalone_nodes else f"on {self.nodes} node{'s' * (self.nodes > 1)}"
        return f"{self.servers} {on}, {how}"


def topology(spec: RunSpec, rendezvous: Rendezvous) -> Topology:
    # Ranks are placed evenly, node by node (harness/plan/plan.py).
    rank, per_node = rendezvous.rank, rendezvous.local_world_size
    node, nodes = rank // per_node, rendezvous.world_size // per_node
    strategy = info(spec.strategy)
    assert strategy.servers is not None
    mode, inside_nodes = strategy.servers, strategy.servers_per_node
    worker: Optional[int] = rank
    if inside_nodes:
        worker = node if rendezvous.local_rank == 0 else None
    pushed = spec.batch_per_gpu * (per_node if inside_nodes else 1)
    servers = spec.strategy_options["servers"] or nodes
    return Topology(
        spec=spec,
        mode=mode,
        inside_nodes=inside_nodes,
        node=node,
        nodes=nodes,
        per_node=per_node,
        worker=worker,
        workers=nodes if inside_nodes else rendezvous.world_size,
        pushed=pushed,
        samples=spec.global_batch if mode == SYNCHRONOUS else pushed,
        servers=servers,
        here=rendezvous.local_rank == 0 and node < servers and not spec.server_nodes,
    )


def settings(spec: RunSpec, workers: int) -> Settings:
    """Return the settings of one of the run's servers."""
    mode = info(spec.strategy).servers
    assert mode is not None
    return Settings(
        mode=mode,
        workers=workers,
        staleness=spec.strategy_options.get("staleness", 0),
        momentum=spec.optimizer.momentum,
        weight_decay=spec.optimizer.weight_decay,
        nesterov=spec.optimizer.nesterov,
    )


def node_name() -> str:
    """Return Slurm's name of this node, which for virtual nodes is not the host name."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def _nodes_in_words(nodes: Sequence[str]) -> str:
    """Describe the nodes of standalone servers, as seen from a rank."""
    if node_name() in nodes:
        return "in processes of their own, on the ranks' one node"
    return f"on {len(nodes)} node{'s' * (len(nodes) > 1)} of their own ({', '.join(nodes)})"
