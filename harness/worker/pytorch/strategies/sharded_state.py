"""A rank's shard of the network and of its optimiser, as plain tensors for its own checkpoint."""

from __future__ import annotations

from typing import Any, Dict

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer


class ShardedState:
    """A checkpoint part with this rank's shards as plain tensors."""

    def __init__(self, network: nn.Module, optimizer: Optimizer) -> None:
        self.network, self.optimizer = network, optimizer

    def state_dict(self) -> Dict[str, Any]:
        state = self.optimizer.state_dict()
        numbered = {
            number: {name: local(value) for name, value in kept.items()} for number, kept in state["state"].items()
        }
        return {
            "network": {name: local(value) for name, value in self.network.state_dict().items()},
            "optimizer": {**state, "state": numbered},
        }

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        for name, value in self.network.state_dict().items():
            local(value).copy_(state["network"][name])
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        numbered = {
            number: {name: _sharded_like(parameters[number], value) for name, value in kept.items()}
            for number, kept in state["optimizer"]["state"].items()
        }
        self.optimizer.load_state_dict({**state["optimizer"], "state": numbered})


def local(value: Any) -> Any:
    return value.to_local() if isinstance(value, DTensor) else value


def _sharded_like(parameter: Any, value: Any) -> Any:
    """Return per-element state as a DTensor sharded like its parameter."""
    if not isinstance(parameter, DTensor) or not isinstance(value, torch.Tensor):
        return value
    if value.shape != parameter.to_local().shape:
        return value
    return DTensor.from_local(
        value, parameter.device_mesh, parameter.placements, shape=parameter.shape, stride=parameter.stride()
    )
