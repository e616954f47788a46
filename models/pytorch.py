"""Builds a network of the catalogue as a `torch.nn.Module`."""

from __future__ import annotations

from typing import List

import torch
from torch import nn
from torch.nn import functional

from models import catalog, initial


def build(layers: catalog.Layers, seed: int) -> nn.Sequential:
    """Build a network with the initial weights of `models.initial`, as a sequence of one module per layer.

    Images: float [n, channels, height, width] -> logits [n, classes]. Text: int64 [n, tokens] -> logits [n, tokens,
    vocabulary].
    """
    network = _sequence(layers)
    # Both iterate in the order of `catalog.flat`.
    for parameter, array in zip(network.parameters(), initial.weights(layers, seed)):
        parameter.data = torch.from_numpy(array)
    return network


class Residual(nn.Module):
    def __init__(self, layer: catalog.Residual) -> None:
        super().__init__()
        self.body = _sequence(layer.body)
        self.shortcut = _sequence(layer.shortcut)
        # Calling a module costs host time, which limits small networks on GPUs.
        self.is_identity = not layer.shortcut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.body(x) + (x if self.is_identity else self.shortcut(x))).relu_()


class Scale(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


class Whitening(nn.Module):
    """The kernel is set later from the training images; until then the output is the bias."""

    def __init__(self, layer: catalog.Whitening) -> None:
        super().__init__()
        self.register_buffer("kernel", torch.zeros(layer.outputs, layer.inputs, layer.kernel, layer.kernel))
        self.bias = nn.Parameter(torch.zeros(layer.outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.conv2d(x, self.kernel, self.bias)


class Shifted(nn.BatchNorm2d):
    """BatchNorm with a fixed scale of 1, which cuDNN's kernel requires."""

    def __init__(self, layer: catalog.BatchNorm) -> None:
        super().__init__(layer.channels, eps=catalog.BATCHNORM_EPSILON, momentum=layer.momentum)
        del self.weight
        self.register_buffer("weight", torch.ones(layer.channels))


class PadShortcut(nn.Module):
    def __init__(self, layer: catalog.PadShortcut) -> None:
        super().__init__()
        self.stride = layer.stride
        self.padding = (0, 0, 0, 0, 0, layer.outputs - layer.inputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.pad(x[:, :, :: self.stride, :: self.stride], self.padding)


class Embedding(nn.Module):
    def __init__(self, layer: catalog.Embedding) -> None:
        super().__init__()
        self.tokens = nn.Embedding(layer.vocabulary, layer.width)
        self.positions = nn.Embedding(layer.context, layer.width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]


class TransformerBlock(nn.Module):
    """Transformer block, possibly with only a part of the heads and hidden columns.

    For tensor parallelism, query, key, value and expand may have fewer outputs than the row says, and project and
    contract correspondingly fewer inputs.
    """

    def __init__(self, layer: catalog.TransformerBlock) -> None:
        super().__init__()
        width = layer.width
        self.head_width = layer.head_width
        self.norm1 = _layer_norm(width)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.project = nn.Linear(width, width)
        self.norm2 = _layer_norm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.project(self._attention(self.norm1(x)))
        return x + self.contract(functional.gelu(self.expand(self.norm2(x)), approximate="tanh"))

    def _attention(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (self._by_head(of(x)) for of in (self.query, self.key, self.value))
        found = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return found.transpose(1, 2).flatten(2)

    def _by_head(self, x: torch.Tensor) -> torch.Tensor:
        """[n, tokens, heads * head width] -> [n, heads, tokens, head width], for the heads present."""
        return x.unflatten(-1, (x.shape[-1] // self.head_width, self.head_width)).transpose(1, 2)


def statistics(network: nn.Module) -> List[torch.Tensor]:
    """BatchNorm's running means and variances."""
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    return [tensor for norm in norms for tensor in (norm.running_mean, norm.running_var) if tensor is not None]


def norm_biases(network: nn.Module) -> List[nn.Parameter]:
    """BatchNorm biases."""
    return [module.bias for module in network.modules() if isinstance(module, nn.BatchNorm2d)]


def halve(network: nn.Module) -> None:
    """Convert weights to fp16, except BatchNorm's, which stay in fp32 like its statistics."""
    network.half()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.float()


# Blocks that a sharding strategy gathers as a unit.
BLOCKS = (Residual, TransformerBlock)


def _layer_norm(width: int) -> nn.LayerNorm:
    return nn.LayerNorm(width, eps=catalog.LAYERNORM_EPSILON)


def _sequence(layers: catalog.Layers) -> nn.Sequential:
    return nn.Sequential(*map(_module, layers))


def _module(layer: catalog.Layer) -> nn.Module:
    if isinstance(layer, catalog.Convolution):
        return nn.Conv2d(layer.inputs, layer.outputs, layer.kernel, layer.stride, layer.padding, bias=layer.bias)
    if isinstance(layer, catalog.Whitening):
        return Whitening(layer)
    if isinstance(layer, catalog.BatchNorm):
        if not layer.scale:
            return Shifted(layer)
        return nn.BatchNorm2d(layer.channels, eps=catalog.BATCHNORM_EPSILON, momentum=layer.momentum)
    if isinstance(layer, catalog.ReLU):
        return nn.ReLU(inplace=True)
    if isinstance(layer, catalog.GELU):
        return nn.GELU()
    if isinstance(layer, catalog.MaxPool):
        return nn.MaxPool2d(layer.kernel, layer.stride, layer.padding)
    if isinstance(layer, catalog.GlobalAveragePool):
        return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    if isinstance(layer, catalog.Flatten):
        return nn.Flatten()
    if isinstance(layer, catalog.Linear):
        return nn.Linear(layer.inputs, layer.outputs)
    if isinstance(layer, catalog.Scale):
        return Scale(layer.factor)
    if isinstance(layer, catalog.PadShortcut):
        return PadShortcut(layer)
    if isinstance(layer, catalog.Residual):
        return Residual(layer)
    if isinstance(layer, catalog.Embedding):
        return Embedding(layer)
    if isinstance(layer, catalog.LayerNorm):
        return _layer_norm(layer.width)
    if isinstance(layer, catalog.TransformerBlock):
        return TransformerBlock(layer)
    if isinstance(layer, catalog.Projection):
        return nn.Linear(layer.inputs, layer.outputs, bias=False)
    raise AssertionError(f"models/pytorch.py has no module for {layer!r}")
