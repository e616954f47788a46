"""Parameter servers hold the weights and the optimiser; ranks push gradients and receive weights.

Gradients pass through host memory after backward, without overlap. Everything else (evaluation, signals to stop) uses a
gloo group of all ranks.
"""

from __future__ import annotations

import contextlib
from typing import Any, ContextManager, Dict, Iterator, List, Mapping, Optional, Type

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD, Optimizer

from harness.core.rendezvous import Rendezvous
from harness.core.spec import RunSpec, Site
from harness.worker.distributed.process_group import destroy_process_group, init_process_group
from harness.worker.pytorch.strategies.base import Stateful, Strategy
from harness.worker.servers.ranks import ServerRank


class ParameterServers(Strategy):
    """Every rank is a worker unless topology.py says otherwise; the first ranks of nodes have a colocated server."""

    def __init__(self, spec: RunSpec, site: Site, rendezvous: Rendezvous, device: torch.device) -> None:
        super().__init__(spec, site, rendezvous, device)
        self.servers = ServerRank(spec, site, rendezvous)
        self.place, self.server = self.servers.place, self.servers.server
        self.rank, self.per_node = rendezvous.rank, self.place.per_node
        self.world_size = init_process_group("gloo", site, rendezvous)
        through = ", through the host's memory" if device.type == "cuda" else ""
        self.communication = f"parameter servers: {self.servers.describe()}{through}"

    def wrap(self, network: nn.Module) -> nn.Module:
        weights = list(network.parameters())
        self.numels = [weight.numel() for weight in weights]
        self.weights = [weights[number] for number in self.servers.order(self.numels)]
        self.sizes = [weight.numel() for weight in self.weights]
        pinned = self.device.type == "cuda"
        self.row = torch.empty(sum(self.sizes), pin_memory=pinned)  # host buffer for weights and gradients
        return network

    def optimizer(self, parameters: List[nn.Parameter], kind: Type[Optimizer], settings: Dict[str, Any]) -> Optimizer:
        self.servers.connect(self.numels, self.latest)
        self.client = self.servers.client
        with torch.no_grad():
            self.row.copy_(torch.cat([weight.reshape(-1) for weight in self.weights]))
        self.servers.store(self.row.numpy())
        self.barrier()  # no pushes before all weights are stored
        self.pushing = PushingSgd(self, parameters, **settings)
        return self.pushing

    def sync_gradients(self, synchronise: bool) -> ContextManager[Any]:
        self.pushing.synchronise = synchronise
        return contextlib.nullcontext()

    @torch.no_grad()
    def update(self, learning_rate: float) -> None:
        """Let the servers step with this rank's gradients; copy their weights into the network."""
        gradients = torch.cat([_gradient(weight).reshape(-1) for weight in self.weights])
        self._set_weights(self.pushed(gradients, learning_rate))

    def pushed(self, gradients: torch.Tensor, learning_rate: float) -> torch.Tensor:
        """Push gradients and return the servers' answer, on the device."""
        self.row.copy_(gradients)
        self.servers.push(self.row.numpy(), learning_rate)
        return self.row.to(self.device)

    @contextlib.contextmanager
    def evaluation(self) -> Iterator[None]:
        """Evaluate the servers' weights once all workers have pushed; training continues from each worker's own."""
        own = [weight.detach().clone() for weight in self.weights]
        self.barrier()
        self._set_weights(self.current())
        self.barrier()
        yield
        with torch.no_grad():
            for weight, kept in zip(self.weights, own):
                weight.copy_(kept)

    def current(self) -> torch.Tensor:
        """Return the servers' weights, on the device."""
        assert self.client is not None
        self.client.pull(self.row.numpy())
        return self.row.to(self.device)

    @torch.no_grad()
    def latest(self) -> np.ndarray:
        """Return this rank's weights in the servers' order, to restore a server that lost its own."""
        return np.asarray(torch.cat([weight.reshape(-1) for weight in self.weights]).cpu().numpy())

    def servers_back(self) -> List[Dict[str, Any]]:
        return self.servers.servers_back()

    def updates(self) -> Optional[Dict[str, Any]]:
        return self.servers.updates()

    def replicated_state(self, network: nn.Module, optimizer: Optimizer) -> Mapping[str, Stateful]:
        return {"servers": ServersPart(self)}

    def rank_state(self, network: nn.Module, optimizer: Optimizer) -> Mapping[str, Stateful]:
        return {"network": network}

    def allreduce(self, nbytes: int) -> None:
        """Sum through the servers, which wait for all workers in every mode."""
        if nbytes not in self.messages:
            self.messages[nbytes] = torch.zeros(max(1, nbytes // 4), device=self.device)
        self.sum_by_servers(self.messages[nbytes])

    def sum_by_servers(self, message: torch.Tensor) -> None:
        assert self.client is not None
        host = message.cpu()
        self.client.sum(host.numpy())
        message.copy_(host)

    def sum(self, tensor: torch.Tensor) -> None:
        host = tensor.cpu()
        dist.all_reduce(host)
        tensor.copy_(host)

    def broadcast(self, tensor: torch.Tensor) -> None:
        host = tensor.cpu()
        dist.broadcast(host, 0)
        tensor.copy_(host)

    def barrier(self) -> None:
        self.allreduce_sum([0.0])

    def close(self) -> None:
        self.servers.close()
        destroy_process_group()

    @torch.no_grad()
    def _set_weights(self, row: torch.Tensor) -> None:
        for weight, part in zip(self.weights, row.split(self.sizes)):
            weight.copy_(part.view_as(weight))


class PsSync(ParameterServers):
    """One update per step with the mean of all ranks' gradients: equals `allreduce` up to rounding (Li et al. 2014,
    Scaling Distributed Machine Learning with the Parameter Server, OSDI)."""

    @torch.no_grad()
    def means(self) -> None:
        assert self.client is not None
        self.client.mean(self.row.numpy())
        for weight, part in zip(self.weights, self.row.to(self.device).split(self.sizes)):
            _gradient(weight).copy_(part.view_as(weight))


class PsAsync(ParameterServers):
    """Downpour SGD: each gradient is applied on arrival, and the current weights are returned (Dean et al. 2012, Large
    Scale Distributed Deep Networks, NIPS, section 4.1, with n_push = n_fetch = 1)."""


class Ssp(ParameterServers):
    """Like `ps_async`, but no rank may be more than `staleness` steps ahead of the slowest (Ho et al. 2013, More
    Effective Distributed ML via a Stale Synchronous Parallel Parameter Server, NIPS)."""


class PsMixed(ParameterServers):
    """Synchronous within a node, asynchronous between nodes: a node's ranks average their gradients, and its first rank
    is the node's worker (Campos et al. 2017, Distributed training strategies for a computer vision deep learning
    algorithm on a distributed GPU cluster, ICCS)."""

    def optimizer(self, parameters: List[nn.Parameter], kind: Type[Optimizer], settings: Dict[str, Any]) -> Optimizer:
        self.leader = self.place.node * self.per_node
        backend = "nccl" if self.device.type == "cuda" else "gloo"
        # Torch requires every rank to create every group in the same order.
        groups = [
            dist.new_group(list(range(first, first + self.per_node)), backend=backend)
            for first in range(0, self.world_size, self.per_node)
        ]
        self.inside = groups[self.place.node]
        return super().optimizer(parameters, kind, settings)

    def pushed(self, gradients: torch.Tensor, learning_rate: float) -> torch.Tensor:
        dist.all_reduce(gradients, group=self.inside)
        gradients /= self.per_node
        return self._from_leader(super().pushed(gradients, learning_rate) if self.client else gradients)

    def current(self) -> torch.Tensor:
        return self._from_leader(super().current() if self.client else self.row.to(self.device))

    def sum_by_servers(self, message: torch.Tensor) -> None:
        dist.reduce(message, self.leader, group=self.inside)
        if self.client:
            super().sum_by_servers(message)
        self._from_leader(message)

    def _from_leader(self, row: torch.Tensor) -> torch.Tensor:
        dist.broadcast(row, self.leader, group=self.inside)
        return row


class PushingSgd(SGD):
    """synchronise: let the servers step; otherwise step this rank's own copy."""

    synchronise = True

    def __init__(self, servers: ParameterServers, parameters: List[nn.Parameter], **settings: Any) -> None:
        super().__init__(parameters, **settings)
        self.servers = servers

    def step(self, closure: Any = None) -> None:
        if self.synchronise:
            self.servers.update(self.param_groups[0]["lr"])
        else:
            super().step()


class ServersPart:
    """The servers' weights, momenta and counters. Rank 0 reads them between two sums over the ranks, so that no rank is
    training."""

    def __init__(self, strategy: ParameterServers) -> None:
        self.strategy = strategy

    def state_dict(self) -> Dict[str, Any]:
        client = self.strategy.client
        assert client is not None
        weights, velocity = client.load()
        counters = client.counters()
        return {"weights": torch.from_numpy(weights), "velocity": torch.from_numpy(velocity), "counters": counters}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """Restore them; called on every rank."""
        self.strategy.barrier()  # no messages in flight
        if self.strategy.rank == 0:
            client = self.strategy.client
            assert client is not None
            client.store(state["weights"].cpu().numpy(), state["velocity"].cpu().numpy())
            client.recall(state["counters"])
        self.strategy.barrier()  # no pushes before all weights are stored


def _gradient(weight: nn.Parameter) -> torch.Tensor:
    assert weight.grad is not None
    return weight.grad
