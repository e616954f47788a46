"""Horovod: its background thread carries the gradients."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any, Iterator, Tuple

import torch
from torch import nn

from harness.core.rendezvous import Rendezvous
from harness.core.spec import RunSpec, Site
from harness.worker.pytorch.strategies.base import Strategy

if TYPE_CHECKING:
    from harness.worker.distributed.horovod import Nodes

# What decompressing a gradient needs: Horovod's context, shape and strides.
Kept = Tuple[Any, torch.Size, Tuple[int, ...]]
# Exceeds any number of backward passes.
NEVER = 2**30


class Horovod(Strategy):
    """Horovod's hooks submit each gradient when it is ready; its background thread fuses them into messages (Sergeev
    and Del Balso 2018, arXiv 1802.05799)."""

    new_gradients = False

    def __init__(self, spec: RunSpec, site: Site, rendezvous: Rendezvous, device: torch.device) -> None:
        super().__init__(spec, site, rendezvous, device)
        import horovod.torch as hvd

        from harness.worker.distributed import horovod

        self.hvd, self.carrier = hvd, horovod.versions()
        self.nodes = horovod.start(hvd, spec, site, rendezvous)
        self.compression = FlatCompression(horovod.compression(hvd, spec))
        self.communication = horovod.name(hvd, spec, self.nodes)
        self.world_size = hvd.size()

    def wrap(self, network: nn.Module) -> nn.Module:
        for weight in network.parameters():
            weight.grad = torch.zeros_like(weight)
        self.weights = list(network.parameters())
        if self.nodes:
            return network
        # Only its hooks and its waiting are used; the adapter's own optimiser steps, as in other strategies.
        sgd = torch.optim.SGD(network.parameters(), lr=0.0)
        self.hooks = self.hvd.DistributedOptimizer(
            sgd, network.named_parameters(), op=self.hvd.Average, compression=self.compression
        )
        return network

    @contextlib.contextmanager
    def sync_gradients(self, synchronise: bool) -> Iterator[None]:
        if self.nodes:
            yield
            if synchronise:
                self._mean_by_node(self.nodes)
            return
        self.hooks.set_backward_passes_per_step(1 if synchronise else NEVER)
        yield
        if synchronise:
            self.hooks.synchronize()

    @torch.no_grad()
    def _mean_by_node(self, nodes: Nodes) -> None:
        """Average after backward by node, then over nodes, which all have equally many ranks. Each phase handles all
        gradients, fused by Horovod, before the next."""
        pairs = [(weight.grad, *self.compression.compress(weight.grad)) for weight in self.weights]
        steps = [
            ("inside", nodes.inside, functools.partial(self.hvd.allreduce_async_, op=self.hvd.Average)),
            ("between", nodes.between, functools.partial(self.hvd.allreduce_async_, op=self.hvd.Average)),
            ("out", nodes.inside, functools.partial(self.hvd.broadcast_async_, root_rank=nodes.first)),
        ]
        for step, ranks, carry in steps:
            if ranks:
                messages = enumerate(message for _, message, _ in pairs)
                for handle in [carry(m, name=f"gradient.{n}.{step}", process_set=ranks) for n, m in messages]:
                    self.hvd.synchronize(handle)
        for gradient, message, kind in pairs:
            if message.data_ptr() != gradient.data_ptr():
                gradient.copy_(self.compression.decompress(message, kind))

    def sum(self, tensor: torch.Tensor) -> None:
        self.hvd.allreduce_(tensor, op=self.hvd.Sum, name=f"sum.{tensor.dtype}.{tensor.numel()}")

    def broadcast(self, tensor: torch.Tensor) -> None:
        # Named, because Horovod's automatic numbers differ between ranks that exchanged different numbers of tensors.
        self.hvd.broadcast_(tensor, root_rank=0, name=f"share.{tensor.dtype}.{tensor.numel()}")

    def close(self) -> None:
        self.hvd.shutdown()


class FlatCompression:
    """Compress gradients of any memory layout.

    Horovod accepts contiguous tensors only, but gradients have the strides of their weights, e.g. channels_last. Flat
    views of their memory are contiguous, and all ranks share one layout.
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def compress(self, tensor: torch.Tensor) -> Tuple[torch.Tensor, Kept]:
        message, kind = self.inner.compress(tensor.as_strided((tensor.numel(),), (1,)))
        return message, (kind, tensor.shape, tensor.stride())

    def decompress(self, message: torch.Tensor, kept: Kept) -> torch.Tensor:
        kind, shape, strides = kept
        row: torch.Tensor = self.inner.decompress(message, kind)
        return row.as_strided(shape, strides)
