"""The hand-made baseline: one flat buffer through mpi4py."""

from __future__ import annotations

import contextlib
from typing import Callable, Dict, Iterator, Tuple

import numpy as np
import torch
from torch import nn

from harness.core.rendezvous import Rendezvous
from harness.core.spec import RunSpec, Site
from harness.worker.pytorch.strategies.base import Strategy


class Mpi(Strategy):
    """All gradients lie in one flat buffer; after backward MPI sums it, from GPU memory where the library can."""

    new_gradients = False

    def __init__(self, spec: RunSpec, site: Site, rendezvous: Rendezvous, device: torch.device) -> None:
        super().__init__(spec, site, rendezvous, device)
        from harness.worker.distributed import mpi

        self.ranks, self.carrier = mpi.MpiRanks(), mpi.versions()
        self.world_size = self.ranks.world_size
        self.on_host = device.type == "cpu" or not mpi.cuda_aware()
        self.through_host = ThroughHost(device)
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
    def sync_gradients(self, synchronise: bool) -> Iterator[None]:
        yield
        if synchronise:
            self.sum(self.flat)
            self.flat /= self.world_size

    def sum(self, tensor: torch.Tensor) -> None:
        if self.device.type == "cpu":
            self.ranks.sum(tensor.numpy())
        elif self.on_host:
            self.through_host(tensor, self.ranks.sum)
        else:
            torch.cuda.synchronize(self.device)
            self.ranks.sum(tensor)

    def broadcast(self, tensor: torch.Tensor) -> None:
        self.through_host(tensor, self.ranks.broadcast)

    def close(self) -> None:
        self.ranks.close()


class ThroughHost:
    """Does something with a tensor's numbers in the host's memory. The buffers there are kept: page-locked ones, which
    a GPU reads and writes by itself, take long to make."""

    def __init__(self, device: torch.device) -> None:
        self.pinned = device.type == "cuda"
        self.buffers: Dict[Tuple[int, torch.dtype], torch.Tensor] = {}

    @torch.no_grad()
    def __call__(self, tensor: torch.Tensor, change: Callable[[np.ndarray], None]) -> None:
        """change: given all numbers in a row, changes them in place; the tensor has the new ones for whatever is put on
        the current stream after this. Waits for the copy to the host only, and not for the whole device."""
        kind = tensor.numel(), tensor.dtype
        if kind not in self.buffers:
            self.buffers[kind] = torch.empty(kind[0], dtype=kind[1], pin_memory=self.pinned)
        host = self.buffers[kind]
        # A copy that is still on its way from here to the device comes first on the same stream.
        host.copy_(tensor.reshape(-1), non_blocking=True)
        if self.pinned:
            copied = torch.cuda.Event()
            copied.record()
            copied.synchronize()
        change(host.numpy())
        tensor.copy_(host.view(tensor.shape), non_blocking=True)
