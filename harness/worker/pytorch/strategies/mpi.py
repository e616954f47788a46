"""Hand-written baseline: one flat gradient buffer, summed by mpi4py."""

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
    """Store all gradients in one flat buffer; MPI sums it after backward, from GPU memory if the library supports
    that."""

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
            # Use the weight's own strides, which in channels_last are not those of its shape.
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
    """Apply a function to a tensor's values in host memory. Buffers are reused: page-locked memory is slow to
    allocate."""

    def __init__(self, device: torch.device) -> None:
        self.pinned = device.type == "cuda"
        self.buffers: Dict[Tuple[int, torch.dtype], torch.Tensor] = {}

    @torch.no_grad()
    def __call__(self, tensor: torch.Tensor, change: Callable[[np.ndarray], None]) -> None:
        """Let `change` modify the values, as a flat array, in place. Waits only for the copy to the host, not for the
        device; later work on the current stream sees the new values."""
        kind = tensor.numel(), tensor.dtype
        if kind not in self.buffers:
            self.buffers[kind] = torch.empty(kind[0], dtype=kind[1], pin_memory=self.pinned)
        host = self.buffers[kind]
        # Ordered on the stream after any copy from this buffer that is still in flight.
        host.copy_(tensor.reshape(-1), non_blocking=True)
        if self.pinned:
            copied = torch.cuda.Event()
            copied.record()
            copied.synchronize()
        change(host.numpy())
        tensor.copy_(host.view(tensor.shape), non_blocking=True)
