"""Tensor parallelism: each rank of a replica has some of the channels and units of each layer."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Tuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn import functional

from harness.worker.pytorch.strategies.model_parallel import ModelParallel
from harness.worker.pytorch.strategies.sharded_state import local
from models import catalog, division
from models.pytorch import TransformerBlock

# Maps inputs, weights and bias to outputs.
Product = Callable[[torch.Tensor, torch.Tensor, Optional[torch.Tensor]], torch.Tensor]


class Tensor(ModelParallel):
    """Split layers in pairs, the first by outputs and the second by inputs, so that forward and backward need one sum
    over the ranks each (Shoeybi et al. 2019, Megatron-LM, arXiv 1909.08053, section 3). Unpaired layers are
    replicated."""

    def wrap(self, network: nn.Module) -> nn.Module:
        assert isinstance(network, nn.Sequential)
        # Sharded weights must be contiguous; channels_last inputs make the activations channels_last anyway.
        network.to(memory_format=torch.contiguous_format)
        for first, second in division.pairs(self.layers):
            network[first] = nn.Sequential(Copied(self.mesh), ByOutputs(network[first], self.mesh))
            network[second] = ByInputs(network[second], self.mesh)
        for block in network:
            if isinstance(block, TransformerBlock):
                _divide_block(block, self.mesh)
        network.to(self.device)
        share = division.divided_parameters(self.layers) / catalog.parameters(self.layers)
        self.communication += f", tensor parallel over {self.degree} ranks{self.among_replicas()}"
        self.communication += f", {share:.1%} of the parameters divided"
        return network

    def gradient_bytes(self, parameters: List[nn.Parameter]) -> int:
        """Return the bytes of this rank's shard."""
        return super().gradient_bytes([local(p) for p in parameters]) if self.replicas > 1 else 0


def _divide_block(block: Any, mesh: DeviceMesh) -> None:
    """Split by attention heads and by columns of the hidden layer."""
    for name in ("norm1", "norm2"):
        setattr(block, name, nn.Sequential(getattr(block, name), Copied(mesh)))
    for name in ("query", "key", "value", "expand"):
        setattr(block, name, ByOutputs(getattr(block, name), mesh))
    for name in ("project", "contract"):
        setattr(block, name, ByInputs(getattr(block, name), mesh))


class Divided(nn.Module):
    """A convolution or fully connected layer with its weights sharded along `dimension`."""

    def __init__(self, layer: nn.Module, mesh: DeviceMesh, dimension: int) -> None:
        super().__init__()
        assert isinstance(layer, (nn.Conv2d, nn.Linear))
        self.mesh, self.group = mesh, mesh.get_group()
        # Torch's `parallelize_module` has no convolutions, and its outputs cannot be changed by an in-place ReLU.
        self.product: Product = functional.linear
        # Dimensions after the channels, for broadcasting the bias.
        self.around: Tuple[int, ...] = ()
        if isinstance(layer, nn.Conv2d):
            stride, padding = layer.stride, layer.padding
            self.product = lambda x, weight, bias: functional.conv2d(x, weight, bias, stride, padding)
            self.around = (1, 1)
        self.weight = self.divided(layer.weight, dimension)

    def divided(self, whole: torch.Tensor, dimension: int) -> nn.Parameter:
        share = whole.detach().chunk(self.mesh.size(), dimension)[self.mesh.get_local_rank()]
        share = share.contiguous().to(self.mesh.device_type)
        return nn.Parameter(DTensor.from_local(share, self.mesh, [Shard(dimension)], run_check=False))


class ByOutputs(Divided):
    """Map all inputs, from `Copied`, to this rank's outputs."""

    def __init__(self, layer: nn.Module, mesh: DeviceMesh) -> None:
        super().__init__(layer, mesh, 0)
        self.bias = None if layer.bias is None else self.divided(layer.bias, 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.product(x, local(self.weight), local(self.bias))


class ByInputs(Divided):
    """Map this rank's inputs to all outputs, equal on all ranks."""

    def __init__(self, layer: nn.Module, mesh: DeviceMesh) -> None:
        super().__init__(layer, mesh, 1)
        self.bias = layer.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sum_of_parts = _Summed.apply(self.product(x, local(self.weight), None), self.group)
        return sum_of_parts if self.bias is None else sum_of_parts + self.bias.view(-1, *self.around)


class Copied(nn.Module):
    """Identity in forward; sums the gradients over the ranks in backward."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.group = mesh.get_group()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        copied: torch.Tensor = _Copied.apply(x, self.group)
        return copied


class _Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        return _sum(grad_output, ctx.group), None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        return _sum(x, group)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        return grad_output, None


def _sum(x: torch.Tensor, group: Any) -> torch.Tensor:
    """Return the sum over the ranks as a new tensor with x's strides, which are equal on all ranks."""
    total = x.clone(memory_format=torch.preserve_format)
    dist.all_reduce(total, group=group)
    return total
