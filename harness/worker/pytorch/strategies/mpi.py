"""The hand-made baseline: one flat buffer through mpi4py."""

from __future__ import annotations

import contextlib
from typing import Iterator

import torch
from torch import nn

from harness.spec import RunSpec, Site
from harness.worker.pytorch.strategies.base import Strategy
from harness.worker.rendezvous import Rendezvous


class Mpi(Strategy):
    """All gradients lie in one flat buffer; after backward MPI sums it, from GPU memory where the library can."""

    new_gradients = False

    def __init__(self, spec: RunSpec, site: Site, rendezvous: Rendezvous, device: torch.device) -> None:
        super().__init__(spec, site, rendezvous, device)
        from harness.worker import mpi

        self.ranks, self.carrier = mpi.MpiRanks(), mpi.versions()
        self.world_size = self.ranks.world_size
        self.on_host = device.type == "cpu" or not mpi.cuda_aware()
        through = ", through the host's memory" if device.type == "cuda" and self.on_host else ""
        self.communication = self.ranks.name + through

    def wrap(self, network: nn.Module) -> nn.Module:
        weights = list(network.parameters())
        self.flat = torch.zeros(sum(weight.numel() for weight in weights), device=self.device)
        for weight, part in zip(weights, self.flat.split([weight.numel() for weight in weights])):
            # In the weight's own memory layout, which is not that of its shape where the network is in channels_last.
            weight.grad = part.as_strided(weight.shape, weight.stride())
        return network

    @contextlib.contextmanager
    def exchange(self, synchronise: bool) -> Iterator[None]:
        yield
        if synchronise:
            self.sum(self.flat)
            self.flat /= self.world_size

    def sum(self, tensor: torch.Tensor) -> None:
        if self.device.type == "cpu":
            self.ranks.sum(tensor.numpy())
        elif self.on_host:
            host = tensor.cpu()
            self.ranks.sum(host.numpy())
            tensor.copy_(host)
        else:
            torch.cuda.synchronize(self.device)
            self.ranks.sum(tensor)

    def share(self, tensor: torch.Tensor) -> None:
        host = tensor.cpu().numpy()
        self.ranks.share(host)
        tensor.copy_(torch.from_numpy(host))

    def close(self) -> None:
        self.ranks.close()
