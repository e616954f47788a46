"""Fully sharded data parallelism: each rank keeps its share of every parameter, gradient and optimiser state."""

from __future__ import annotations

import contextlib
from typing import Any, ContextManager

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim import Optimizer

from harness.worker.pytorch.strategies.base import Collectives, Parts
from harness.worker.pytorch.strategies.share import Share
from models.pytorch import BLOCKS


class Fsdp(Collectives):
    """Weights are gathered block by block, before forward and before backward, and given up after it (Zhao et al. 2023,
    PyTorch FSDP, VLDB 16(12); here `fully_shard`)."""

    # Without its exchange there would be no weights to compute with.
    separable = False

    def to_device(self, network: nn.Module) -> nn.Module:
        # `fully_shard` moves each block when it divides it: the device never has to hold the whole network.
        return network

    def wrap(self, network: nn.Module) -> nn.Module:
        # Inputs in channels_last make activations so; weights that are divided must be contiguous.
        network = network.to(memory_format=torch.contiguous_format)
        mesh = init_device_mesh(self.device.type, (self.world_size,))
        for block in network.modules():
            if isinstance(block, BLOCKS):
                fully_shard(block, mesh=mesh)
        return fully_shard(network, mesh=mesh)

    def exchange(self, synchronise: bool) -> ContextManager[Any]:
        return contextlib.nullcontext()

    def common(self, network: nn.Module, optimizer: Optimizer) -> Parts:
        return {}

    def own(self, network: nn.Module, optimizer: Optimizer) -> Parts:
        return {"share": Share(network, optimizer)}
