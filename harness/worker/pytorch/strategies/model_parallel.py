"""The shared part of `pipeline` and `tensor`: several ranks form a replica, and replicas are data parallel."""

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
from harness.worker.pytorch.strategies.sharded_state import ShardedState, local
from models import catalog


class ModelParallel(Collectives):
    """place: index of this rank in its replica. first: rank with place 0 in it. replica: group of the replica's
    (neighbouring) ranks. peers: group of the ranks with this place in all replicas."""

    # One rank of a replica has no complete model.
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
        # `wrap` moves only this rank's part, so that the device never holds the whole network.
        return network

    def optimizer(self, parameters: List[nn.Parameter], kind: Type[Optimizer], settings: Dict[str, Any]) -> Optimizer:
        self.parameters = parameters
        # torch's multi-tensor steps cannot mix sharded and unsharded weights.
        return kind(parameters, foreach=False, **settings)

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
        return {"share": ShardedState(network, optimizer)}

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Copy from the same place in the first replica."""
        dist.broadcast(tensor, self.place, group=self.peers)

    def allreduce(self, nbytes: int) -> None:
        """Sum over the replicas, as for gradients; then synchronise all ranks by a sum of 8 bytes."""
        if nbytes not in self.messages:
            self.messages[nbytes] = torch.zeros(max(1, nbytes // 4), device=self.device)
        dist.all_reduce(self.messages[nbytes], group=self.peers)
        self.sum(torch.zeros(2, device=self.device))

    def among_replicas(self) -> str:
        """Return the number of replicas as a suffix of `communication`."""
        return f", {self.replicas} replicas" if self.replicas > 1 else ""
