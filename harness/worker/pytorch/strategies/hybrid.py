"""Hybrid communication: fully connected layers send sufficient factors, all other layers use allreduce."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, List, Optional, Tuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from harness.core.rendezvous import Rendezvous
from harness.core.spec import RunSpec, Site
from harness.worker.pytorch.strategies.allreduce import Allreduce, Reduction


class Hybrid(Allreduce):
    """A fully connected layer's weight gradient is a sum over samples of outer products of its input and output
    gradient (Xie et al. 2016, Lighter-Communication Distributed Machine Learning via Sufficient Factor Broadcasting).
    Layers for which these vectors are smaller than the matrix send them instead (Zhang et al. 2017, Poseidon, USENIX
    ATC, section 4.2)."""

    only_buckets = False

    def __init__(self, spec: RunSpec, site: Site, rendezvous: Rendezvous, device: torch.device) -> None:
        super().__init__(spec, site, rendezvous, device)
        # A separate group, since DDP's messages and these are in flight at the same time.
        self.group = dist.new_group()
        self.factored: List[Factored] = []

    def wrap(self, network: nn.Module) -> nn.Module:
        linear = {name: layer for name, layer in network.named_modules() if isinstance(layer, nn.Linear)}
        chosen = {name: layer for name, layer in linear.items() if self._is_cheaper(layer)}
        self.factored = [Factored(layer, self.group) for layer in chosen.values()]
        self.communication += f", sufficient factors in {len(chosen)} of {len(linear)} fully connected layers"
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
            network, [f"{name}.weight" for name in chosen]
        )
        return super().wrap(network)

    def reduction(self) -> Optional[Reduction]:
        return None

    @contextlib.contextmanager
    def sync_gradients(self, synchronise: bool) -> Iterator[None]:
        for layer in self.factored:
            layer.synchronise = synchronise
        with super().sync_gradients(synchronise):
            yield
        for layer in self.factored:
            layer.finish()

    def _is_cheaper(self, layer: nn.Linear) -> bool:
        """Return True if a rank transfers less for all factors than for a ring allreduce of the matrix."""
        factors = self.spec.global_batch * (layer.in_features + layer.out_features)
        return factors < 2 * layer.in_features * layer.out_features


class Factored:
    """A fully connected layer whose backward sends the factors of its weight gradient instead of computing it."""

    def __init__(self, layer: nn.Linear, group: Any) -> None:
        self.layer, self.group = layer, group
        self.synchronise = True
        self.own: Optional[Tuple[torch.Tensor, torch.Tensor]] = None
        self.gathered: List[torch.Tensor] = []
        self.work: Any = None
        # Replace only `forward`, so that the network and its parameter names do not change.
        layer.forward = self.forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.is_grad_enabled():
            return functional.linear(x, self.layer.weight, self.layer.bias)
        output: torch.Tensor = _Product.apply(x, self.layer.weight, self)
        return output + self.layer.bias

    def send(self, x: torch.Tensor, grad_output: torch.Tensor) -> None:
        """Send the factors during backward, in float32 like gradients."""
        self.own = x.float(), grad_output.float()
        if self.synchronise:
            both = torch.cat(self.own, dim=1)
            self.gathered = [torch.empty_like(both) for _ in range(dist.get_world_size(self.group))]
            self.work = dist.all_gather(self.gathered, both, group=self.group, async_op=True)

    def finish(self) -> None:
        """Compute the gradient after backward: the mean over the ranks, or the rank's own if not synchronised."""
        assert self.own is not None
        x, grad_output = self.own
        if self.synchronise:
            self.work.wait()
            every = torch.cat(self.gathered)
            x, grad_output = every.split([self.layer.in_features, self.layer.out_features], dim=1)
            grad_output = grad_output / len(self.gathered)
        self.layer.weight.grad = grad_output.t() @ x
        self.own, self.gathered = None, []


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, layer: Factored) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layer = layer
        return functional.linear(x, weight)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        ctx.layer.send(x, grad_output)
        return grad_output @ weight.to(grad_output.dtype), None, None
