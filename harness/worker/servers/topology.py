"""Who is a worker of the parameter servers, and beside whom they are: the same in every framework."""

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
    """mode: of the servers. worker: the number of this rank among their workers; None: another rank of its node is one.
    inside_nodes: whether a worker speaks for all ranks of its node. pushed, samples: that one push, and one update, is
    made of. here: whether a server is beside this rank, the first of its node."""

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
        """Of a global batch -> of an update. The rule of the learning rate (OptimizerSpec) is for the samples that one
        update is made of; an asynchronous update is made of one worker's, not of the global batch."""
        optimizer = self.spec.optimizer
        return learning_rate * (optimizer.scaled(self.samples) / optimizer.scaled(self.spec.global_batch))

    def settings(self) -> Settings:
        return settings(self.spec, self.workers)

    def words(self, alone: Sequence[str] = ()) -> str:
        """For the start event, after what the servers are: "2 on 2 nodes, asynchronous". alone: their nodes, where they
        have nodes of their own."""
        how = self.mode
        if self.mode == BOUNDED:
            how = f"staleness at most {self.spec.strategy_options['staleness']}"
        elif self.inside_nodes:
            how = "synchronous inside a node, asynchronous between nodes"
        on = where(alone) if alone else f"on {self.nodes} node{'s' * (self.nodes > 1)}"
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
    """What a server of the run has to know."""
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
    """As Slurm names this node, which on a virtual one is not its host's name."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def where(nodes: Sequence[str]) -> str:
    """The nodes of servers that have their own, in words, for a rank."""
    if node_name() in nodes:
        return "in processes of their own, on the ranks' one node"
    return f"on {len(nodes)} node{'s' * (len(nodes) > 1)} of their own ({', '.join(nodes)})"
