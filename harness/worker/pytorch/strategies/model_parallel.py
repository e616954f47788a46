"""What `pipeline` and `tensor` have in common: several ranks have one copy of the model between them, a replica, and
replicas are data parallel."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator, List, Mapping, Type

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.optim import Optimizer

from harness.core.rendezvous import Rendezvous
from harness.core.spec import RunSpec, Site
from harness.worker.pytorch.strategies.base import Collectives, Stateful
from harness.worker.pytorch.strategies.share import Share, local
from models import catalog


class ModelParallel(Collectives):
    """place: of this rank in its replica, from 0. first: the rank that has place 0 there. replica: the group of the
    replica's ranks, neighbours. peers: the group of those that have this place, one in each replica."""

    # Without the other ranks of its replica, a rank has no whole model.
    separable = False

    def __init__(self, spec: RunSpec, site: Site, rendezvous: Rendezvous, device: torch.device) -> None:
        super().__init__(spec, site, rendezvous, device)
        self.degree, self.replicas = spec.ranks_per_replica, spec.replicas
        mesh = init_device_mesh(device.type, (self.replicas, self.degree), mesh_dim_names=("peers", "replica"))
        self.mesh, self.replica, self.peers = mesh["replica"], mesh.get_group("replica"), mesh.get_group("peers")
        self.place = rendezvous.rank % self.degree
        self.first = rendezvous.rank - self.place
        data = spec.dataset
        self.layers = catalog.network(spec.model).layers(data.channels, data.classes, data.size)

    def to_device(self, network: nn.Module) -> nn.Module:
        # `wrap` moves this rank's share only: the device never has to hold the whole network.
        return network

    def optimizer(self, parameters: List[nn.Parameter], of: Type[Optimizer], settings: Dict[str, Any]) -> Optimizer:
        self.parameters = parameters
        # One weight after the other: torch's steps on many at once do not take divided and whole ones together.
        return of(parameters, foreach=False, **settings)

    @contextlib.contextmanager
    def sync_gradients(self, synchronise: bool) -> Iterator[None]:
        yield
        if self.replicas > 1:
            gradients = [local(p.grad) for p in self.parameters if p.grad is not None]
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
            dist.all_reduce(flat, group=self.peers)
            flat /= self.replicas
            for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients])):
                gradient.copy_(part.view_as(gradient))

    def replicated_state(self, network: nn.Module, optimizer: Optimizer) -> Mapping[str, Stateful]:
        return {}

    def rank_state(self, network: nn.Module, optimizer: Optimizer) -> Mapping[str, Stateful]:
        return {"share": Share(network, optimizer)}

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Of the same part of the model in the first replica."""
        dist.broadcast(tensor, self.place, group=self.peers)

    def allreduce(self, nbytes: int) -> None:
        """Over the replicas, as gradients are; then all ranks wait for each other, by a sum of 8 bytes."""
        if nbytes not in self.messages:
            self.messages[nbytes] = torch.zeros(max(1, nbytes // 4), device=self.device)
        dist.all_reduce(self.messages[nbytes], group=self.peers)
        self.sum(torch.zeros(2, device=self.device))

    def among_replicas(self) -> str:
        """For `communication`."""
        return f", {self.replicas} replicas" if self.replicas > 1 else ""
