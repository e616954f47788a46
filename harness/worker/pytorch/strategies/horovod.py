"""Horovod: its own background thread carries the gradients."""

from __future__ import annotations

import contextlib
from typing import Iterator

import torch
from torch import nn

from harness.spec import RunSpec, Site
from harness.worker.pytorch.strategies.base import Strategy
from harness.worker.rendezvous import Rendezvous

# More backward passes than there will be.
NEVER = 2**30


class Horovod(Strategy):
    """Horovod's hooks send each gradient as soon as it is there, fused into messages by its background thread
    (Sergeev and Del Balso 2018, arXiv 1802.05799)."""

    new_gradients = False

    def __init__(self, spec: RunSpec, site: Site, rendezvous: Rendezvous, device: torch.device) -> None:
        super().__init__(spec, site, rendezvous, device)
        import horovod.torch as hvd

        from harness.worker import horovod

        self.hvd, self.carrier = hvd, horovod.versions()
        horovod.start(hvd, spec, site, rendezvous)
        self.communication = horovod.name(spec)
        self.world_size = hvd.size()

    def wrap(self, network: nn.Module) -> nn.Module:
        for weight in network.parameters():
            # Horovod takes contiguous tensors only; in a network in channels_last, new gradients would not be.
            weight.grad = torch.zeros(weight.shape, device=self.device)
        compression = getattr(self.hvd.Compression, self.spec.strategy_options.get("compress", "none"))
        # Only its hooks and its wait are used; the step is that of the adapter's own optimiser, as everywhere.
        sgd = torch.optim.SGD(network.parameters(), lr=0.0)
        self.hooks = self.hvd.DistributedOptimizer(
            sgd, network.named_parameters(), op=self.hvd.Average, compression=compression
        )
        return network

    @contextlib.contextmanager
    def exchange(self, synchronise: bool) -> Iterator[None]:
        self.hooks.set_backward_passes_per_step(1 if synchronise else NEVER)
        yield
        if synchronise:
            self.hooks.synchronize()

    def sum(self, tensor: torch.Tensor) -> None:
        self.hvd.allreduce_(tensor, op=self.hvd.Sum, name=f"sum.{tensor.dtype}.{tensor.numel()}")

    def share(self, tensor: torch.Tensor) -> None:
        self.hvd.broadcast_(tensor, root_rank=0)

    def close(self) -> None:
        self.hvd.shutdown()
