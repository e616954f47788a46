"""Local SGD: ranks train independently and average their weights every few steps."""

from __future__ import annotations

import contextlib
from typing import Any, ContextManager, Iterator, Mapping

import torch
from torch import nn
from torch.optim import Optimizer

from harness.worker.pytorch.strategies.base import Collectives, Stateful


class LocalSgd(Collectives):
    """Stich 2019, Local SGD Converges Fast and Communicates Little, ICLR. Momentum stays local. Averaging after every
    step gives the weights of `allreduce`, since a step is linear in both."""

    def wrap(self, network: nn.Module) -> nn.Module:
        self.weights = list(network.parameters())
        self.trace_has_parts = self.spec.strategy_options["sync_every"] == 1
        return network

    def sync_gradients(self, synchronise: bool) -> ContextManager[Any]:
        return contextlib.nullcontext()

    def after_step(self, steps: int, synchronise: bool) -> None:
        if synchronise and steps % self.spec.strategy_options["sync_every"] == 0:
            self._average()

    @contextlib.contextmanager
    def evaluation(self) -> Iterator[None]:
        """Evaluate the mean weights; training continues from each rank's own."""
        own = [weight.detach().clone() for weight in self.weights]
        self._average()
        yield
        with torch.no_grad():
            for weight, kept in zip(self.weights, own):
                weight.copy_(kept)

    def replicated_state(self, network: nn.Module, optimizer: Optimizer) -> Mapping[str, Stateful]:
        return {}

    def rank_state(self, network: nn.Module, optimizer: Optimizer) -> Mapping[str, Stateful]:
        return {"network": network, "optimizer": optimizer}

    @torch.no_grad()
    def _average(self) -> None:
        flat = torch.cat([weight.reshape(-1) for weight in self.weights])
        self.sum(flat)
        flat /= self.world_size
        for weight, part in zip(self.weights, flat.split([weight.numel() for weight in self.weights])):
            weight.copy_(part.view_as(weight))
