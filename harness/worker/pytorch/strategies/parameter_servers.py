"""Parameter servers hold the weights and the optimiser; the ranks push gradients and take weights.

Gradients go through the host's memory, after backward and not beside it. What is no gradient (evaluation, signals to
leave) goes over a gloo group of all ranks.
"""

from __future__ import annotations

import contextlib
import datetime
from dataclasses import replace
from typing import Any, ContextManager, Dict, Iterator, List, Optional, Type

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import SGD, Optimizer

from harness.spec import RunSpec, Site
from harness.worker.exchange import gather, own_address
from harness.worker.pytorch.strategies.base import Parts, Strategy
from harness.worker.rendezvous import Rendezvous
from harness.worker.servers.alone import where
from harness.worker.servers.beside import ServerBeside
from harness.worker.servers.client import Address, Client, divide
from harness.worker.servers.parameters import ASYNCHRONOUS, BOUNDED, COMES_BACK, SYNCHRONOUS, Settings


class ParameterServers(Strategy):
    """mode: of the servers. Every rank is a worker of theirs, and first ranks of nodes have a server beside them."""

    mode: str

    def __init__(self, spec: RunSpec, site: Site, rendezvous: Rendezvous, device: torch.device) -> None:
        super().__init__(spec, site, rendezvous, device)
        self.rank, self.per_node = rendezvous.rank, rendezvous.local_world_size
        # Ranks are placed evenly, node by node (harness/plan.py).
        self.node, self.nodes = self.rank // self.per_node, rendezvous.world_size // self.per_node
        self.timeout_seconds = site.timeout_seconds
        self.worker: Optional[int] = self.rank
        self.workers, self.ranks_per_worker = rendezvous.world_size, 1
        self.arrange()
        servers = spec.strategy_options["servers"] or self.nodes
        sgd = spec.optimizer
        settings = Settings(
            mode=self.mode,
            workers=self.workers,
            staleness=spec.strategy_options.get("staleness", 0),
            momentum=sgd.momentum,
            weight_decay=sgd.weight_decay,
            nesterov=sgd.nesterov,
        )
        here = rendezvous.local_rank == 0 and self.node < servers and not spec.server_nodes
        self.server = ServerBeside(settings, own_address(rendezvous)) if here else None
        # With servers on nodes of their own, which have numbers after those of the ranks.
        everyone = replace(rendezvous, world_size=rendezvous.world_size + spec.server_nodes)
        said = gather(everyone, self.server.address if self.server else None, site.timeout_seconds)
        self.addresses = [Address(*address[:3]) for address in said if address is not None]
        dist.init_process_group(
            "gloo",
            init_method=f"tcp://{rendezvous.master_address}:{rendezvous.master_port}",
            rank=rendezvous.rank,
            world_size=rendezvous.world_size,
            timeout=datetime.timedelta(seconds=site.timeout_seconds),
        )
        self.world_size = dist.get_world_size()
        on = f"on {self.nodes} node{'s' * (self.nodes > 1)}"
        if spec.server_nodes:
            on = where([address[3] for address in said if address is not None])
        through = ", through the host's memory" if device.type == "cuda" else ""
        self.communication = f"parameter servers: {len(self.addresses)} {on}, {self.words()}{through}"

    def arrange(self) -> None:
        """Who is a worker of the servers."""

    def words(self) -> str:
        return self.mode

    def wrap(self, network: nn.Module) -> nn.Module:
        weights = list(network.parameters())
        sizes = [weight.numel() for weight in weights]
        shares = divide(sizes, len(self.addresses))
        # In the order in which the servers have them: each server's share is one piece of the row.
        self.weights = [weights[number] for share in shares for number in share]
        self.sizes = [weight.numel() for weight in self.weights]
        self.shares = [sum(sizes[number] for number in share) for share in shares]
        pinned = self.device.type == "cuda"
        self.row = torch.empty(sum(self.sizes), pin_memory=pinned)  # the numbers that come and go, on the host
        return network

    def optimizer(self, parameters: List[nn.Parameter], of: Type[Optimizer], settings: Dict[str, Any]) -> Optimizer:
        self.client: Optional[Client] = None
        if self.worker is not None:
            latest = self.latest if self.mode in COMES_BACK else None
            self.client = Client(self.addresses, self.worker, self.shares, self.timeout_seconds, latest)
        if self.rank == 0:
            assert self.client is not None
            with torch.no_grad():
                self.row.copy_(torch.cat([weight.reshape(-1) for weight in self.weights]))
            self.client.store(self.row.numpy(), np.zeros_like(self.row.numpy()))
        self.barrier()  # nobody pushes before they are there
        self.pushing = Pushing(self, parameters, **settings)
        return self.pushing

    def exchange(self, synchronise: bool) -> ContextManager[Any]:
        self.pushing.synchronise = synchronise
        return contextlib.nullcontext()

    @torch.no_grad()
    def update(self, learning_rate: float) -> None:
        """The servers step with the gradients of this rank; the network has then their weights."""
        gradients = torch.cat([_gradient(weight).reshape(-1) for weight in self.weights])
        self._take(self.pushed(gradients, learning_rate))

    def pushed(self, gradients: torch.Tensor, learning_rate: float) -> torch.Tensor:
        """Gives what the servers answer, on the device."""
        assert self.client is not None
        self.row.copy_(gradients)
        samples = self.spec.batch_per_gpu * self.ranks_per_worker
        self.client.push(self.row.numpy(), samples, self.scaled(learning_rate), self.row.numpy())
        return self.row.to(self.device)

    def scaled(self, learning_rate: float) -> float:
        """The rule of the learning rate (OptimizerSpec) is for the samples that one update is made of; an asynchronous
        update is made of one worker's, not of the global batch."""
        optimizer, late = self.spec.optimizer, self.spec.optimizer.warmup_steps
        samples = self.spec.global_batch
        if self.mode != SYNCHRONOUS:
            samples = self.spec.batch_per_gpu * self.ranks_per_worker
        return learning_rate * (
            optimizer.learning_rate(samples, late) / optimizer.learning_rate(self.spec.global_batch, late)
        )

    @contextlib.contextmanager
    def evaluation(self) -> Iterator[None]:
        """The servers' weights are what has been learned, when every worker has pushed its last. Training goes on from
        each worker's own."""
        own = [weight.detach().clone() for weight in self.weights]
        self.barrier()
        self._take(self.current())
        self.barrier()
        yield
        with torch.no_grad():
            for weight, kept in zip(self.weights, own):
                weight.copy_(kept)

    def current(self) -> torch.Tensor:
        """The servers' weights, on the device."""
        assert self.client is not None
        self.client.pull(self.row.numpy())
        return self.row.to(self.device)

    @torch.no_grad()
    def latest(self) -> np.ndarray:
        """This rank's weights, as the servers have them; for one that lost its own."""
        return np.asarray(torch.cat([weight.reshape(-1) for weight in self.weights]).cpu().numpy())

    def servers_back(self) -> List[Dict[str, Any]]:
        if self.client is None:
            return []
        returns, self.client.returns = self.client.returns, []
        return [back._asdict() for back in returns]

    def updates(self) -> Optional[Dict[str, Any]]:
        if self.rank != 0:
            return None
        assert self.client is not None
        found = self.client.updates()
        return {
            "updates": found.updates,
            "mean": found.staleness_mean,
            "max": found.staleness_max,
            "samples": found.samples,
            "lead": found.lead,
            "returns": found.returns,
            "lost_updates": found.lost_updates,
            "lost_samples": found.lost_samples,
        }

    def common(self, network: nn.Module, optimizer: Optimizer) -> Parts:
        return {"servers": ServersPart(self)}

    def own(self, network: nn.Module, optimizer: Optimizer) -> Parts:
        return {"network": network}

    def allreduce(self, nbytes: int) -> None:
        """Through the servers, which wait for all workers whatever the mode."""
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

    def share(self, tensor: torch.Tensor) -> None:
        host = tensor.cpu()
        dist.broadcast(host, 0)
        tensor.copy_(host)

    def barrier(self) -> None:
        self.total([0.0])

    def close(self) -> None:
        if self.client is not None:
            self.client.close()
        if self.server is not None:
            self.server.close()
        dist.destroy_process_group()

    @torch.no_grad()
    def _take(self, row: torch.Tensor) -> None:
        for weight, part in zip(self.weights, row.split(self.sizes)):
            weight.copy_(part.view_as(weight))


class PsSync(ParameterServers):
    """One update per step, with the mean of all ranks' gradients: the weights of `allreduce`, to rounding (Li et al.
    2014, Scaling Distributed Machine Learning with the Parameter Server, OSDI)."""

    mode = SYNCHRONOUS

    @torch.no_grad()
    def means(self) -> None:
        assert self.client is not None
        self.client.mean(self.row.numpy())
        for weight, part in zip(self.weights, self.row.to(self.device).split(self.sizes)):
            _gradient(weight).copy_(part.view_as(weight))


class PsAsync(ParameterServers):
    """Downpour SGD: each gradient is applied when it comes, and the weights of that moment go back (Dean et al. 2012,
    Large Scale Distributed Deep Networks, NIPS, section 4.1, with n_push = n_fetch = 1)."""

    mode = ASYNCHRONOUS


class Ssp(ParameterServers):
    """As `ps_async`, but no rank begins a step while it is more than `staleness` steps ahead of the slowest (Ho et al.
    2013, More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server, NIPS)."""

    mode = BOUNDED

    def words(self) -> str:
        return f"staleness at most {self.spec.strategy_options['staleness']}"


class PsMixed(ParameterServers):
    """Synchronous inside a node, asynchronous between nodes: a node's ranks take the mean of their gradients, and its
    first rank is the node's worker (Campos et al. 2017, Distributed training strategies for a computer vision deep
    learning algorithm on a distributed GPU cluster, ICCS)."""

    mode = ASYNCHRONOUS

    def arrange(self) -> None:
        self.worker = self.node if self.rank % self.per_node == 0 else None
        self.workers, self.ranks_per_worker = self.nodes, self.per_node

    def words(self) -> str:
        return "synchronous inside a node, asynchronous between nodes"

    def optimizer(self, parameters: List[nn.Parameter], of: Type[Optimizer], settings: Dict[str, Any]) -> Optimizer:
        self.leader = self.node * self.per_node
        backend = "nccl" if self.device.type == "cuda" else "gloo"
        # Every rank makes every group, in the same order: torch wants it so.
        groups = [
            dist.new_group(list(range(first, first + self.per_node)), backend=backend)
            for first in range(0, self.world_size, self.per_node)
        ]
        self.inside = groups[self.node]
        return super().optimizer(parameters, of, settings)

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


class Pushing(SGD):
    """synchronise: whether a step is the servers', or one of the rank's own copy: then it computes the same, alone."""

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
    """What the servers hold: weights, momenta and counters. Read by rank 0 while all ranks wait: the loop saves right
    after a sum over the ranks, and goes on after another."""

    def __init__(self, strategy: ParameterServers) -> None:
        self.strategy = strategy

    def state_dict(self) -> Dict[str, Any]:
        client = self.strategy.client
        assert client is not None
        weights, velocity = client.load()
        counters = client.counters()
        return {"weights": torch.from_numpy(weights), "velocity": torch.from_numpy(velocity), "counters": counters}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """On every rank."""
        self.strategy.barrier()  # no rank has anything in flight
        if self.strategy.rank == 0:
            client = self.strategy.client
            assert client is not None
            client.store(state["weights"].cpu().numpy(), state["velocity"].cpu().numpy())
            client.recall(state["counters"])
        self.strategy.barrier()  # nobody pushes before they are there


def _gradient(weight: nn.Parameter) -> torch.Tensor:
    assert weight.grad is not None
    return weight.grad
