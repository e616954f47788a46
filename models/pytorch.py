"""A row of the catalogue as a `torch.nn.Module`."""

from __future__ import annotations

import torch
from torch import nn

from models import catalog, initial


def build(layers: catalog.Layers, seed: int) -> nn.Module:
    """A network of the catalogue, float [n, channels, height, width] -> logits [n, classes], with the weights that
    `models.initial` makes from the seed."""
    network = _sequence(layers)
    # Both are in the order of `catalog.flat`.
    for parameter, array in zip(network.parameters(), initial.weights(layers, seed)):
        parameter.data = torch.from_numpy(array)
    return network


class Residual(nn.Module):
    def __init__(self, layer: catalog.Residual) -> None:
        super().__init__()
        self.body = _sequence(layer.body)
        self.shortcut = _sequence(layer.shortcut)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.body(x) + self.shortcut(x)).relu_()


class PadShortcut(nn.Module):
    def __init__(self, layer: catalog.PadShortcut) -> None:
        super().__init__()
        self.stride = layer.stride
        self.padding = (0, 0, 0, 0, 0, layer.outputs - layer.inputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.pad(x[:, :, :: self.stride, :: self.stride], self.padding)


def _sequence(layers: catalog.Layers) -> nn.Sequential:
    return nn.Sequential(*map(_module, layers))


def _module(layer: catalog.Layer) -> nn.Module:
    if isinstance(layer, catalog.Convolution):
        return nn.Conv2d(layer.inputs, layer.outputs, layer.kernel, layer.stride, layer.padding, bias=layer.bias)
    if isinstance(layer, catalog.BatchNorm):
        return nn.BatchNorm2d(layer.channels, eps=catalog.BATCHNORM_EPSILON, momentum=catalog.BATCHNORM_MOMENTUM)
    if isinstance(layer, catalog.ReLU):
        return nn.ReLU(inplace=True)
    if isinstance(layer, catalog.MaxPool):
        return nn.MaxPool2d(layer.kernel, layer.stride, layer.padding)
    if isinstance(layer, catalog.GlobalAveragePool):
        return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    if isinstance(layer, catalog.Flatten):
        return nn.Flatten()
    if isinstance(layer, catalog.Linear):
        return nn.Linear(layer.inputs, layer.outputs)
    if isinstance(layer, catalog.PadShortcut):
        return PadShortcut(layer)
    if isinstance(layer, catalog.Residual):
        return Residual(layer)
    raise AssertionError(f"models/pytorch.py has no module for {layer!r}")
