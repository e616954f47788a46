"""Fully sharded data parallelism: each rank keeps a shard of every parameter, gradient and optimiser state."""

from __future__ import annotations

import contextlib
from typing import Any, ContextManager, Mapping

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim import Optimizer

from harness.worker.checks.capability import VersionError
from harness.worker.pytorch.strategies.base import Collectives, Stateful
from harness.worker.pytorch.strategies.sharded_state import ShardedState
from models.pytorch import BLOCKS


class Fsdp(Collectives):
    """Gather weights block by block before forward and backward, and free them afterwards (Zhao et al. 2023, PyTorch
    FSDP, VLDB 16(12); implemented by `fully_shard`)."""

    # Without communication there are no weights to compute with.
    separable = False

    def to_device(self, network: nn.Module) -> nn.Module:
        # `fully_shard` moves each block as it shards it, so that the device never holds the whole network.
        return network

    def wrap(self, network: nn.Module) -> nn.Module:
        # Sharded weights must be contiguous; channels_last inputs make the activations channels_last anyway.
        network = network.to(memory_format=torch.contiguous_format)
        if self.device.type == "cpu":
            self._check_averages()
        mesh = init_device_mesh(self.device.type, (self.world_size,))
        for block in network.modules():
            if isinstance(block, BLOCKS):
                fully_shard(block, mesh=mesh)
        return fully_shard(network, mesh=mesh)

    def _check_averages(self) -> None:
        """Reject gloo of torch 2.7, which sums when asked to average and so scales every step by the number of
        ranks."""
        mean = torch.zeros(1)
        dist.reduce_scatter_tensor(mean, torch.ones(self.world_size), op=dist.ReduceOp.AVG)
        if mean.item() != 1:
            raise VersionError(
                f"strategy=fsdp on CPUs needs torch 2.10 or newer, and this environment has {torch.__version__}, whose "
                "gloo sums gradients instead of averaging them; use a newer torch, GPUs or strategy=zero1"
            )

    def sync_gradients(self, synchronise: bool) -> ContextManager[Any]:
        return contextlib.nullcontext()

    def replicated_state(self, network: nn.Module, optimizer: Optimizer) -> Mapping[str, Stateful]:
        return {}

    def rank_state(self, network: nn.Module, optimizer: Optimizer) -> Mapping[str, Stateful]:
        return {"share": ShardedState(network, optimizer)}
