"""Fully sharded data parallelism: each rank keeps its share of every parameter, gradient and optimiser state."""

from __future__ import annotations

import contextlib
from typing import Any, ContextManager, Dict

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from harness.worker.pytorch.strategies.base import Collectives, Parts
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


class Share:
    """What a rank has of the network and of its optimiser, as plain tensors."""

    def __init__(self, network: nn.Module, optimizer: Optimizer) -> None:
        self.network, self.optimizer = network, optimizer

    def state_dict(self) -> Dict[str, Any]:
        state = self.optimizer.state_dict()
        numbered = {
            number: {name: _local(value) for name, value in kept.items()} for number, kept in state["state"].items()
        }
        return {
            "network": {name: _local(value) for name, value in self.network.state_dict().items()},
            "optimizer": {**state, "state": numbered},
        }

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        for name, value in self.network.state_dict().items():
            _local(value).copy_(state["network"][name])
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        numbered = {
            number: {name: _as(parameters[number], value) for name, value in kept.items()}
            for number, kept in state["optimizer"]["state"].items()
        }
        self.optimizer.load_state_dict({**state["optimizer"], "state": numbered})


def _local(value: Any) -> Any:
    return value.to_local() if isinstance(value, DTensor) else value


def _as(parameter: Any, value: Any) -> Any:
    """What belongs to each element of a parameter, divided as the parameter is."""
    if not isinstance(value, torch.Tensor) or value.shape != parameter.to_local().shape:
        return value
    return DTensor.from_local(
        value, parameter.device_mesh, parameter.placements, shape=parameter.shape, stride=parameter.stride()
    )
