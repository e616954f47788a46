"""A row of the catalogue as a `torch.nn.Module`."""

from __future__ import annotations

import torch
from torch import nn

from models import catalog


def build(name: str, channels: int, classes: int) -> nn.Module:
    """The network `name` for images of `channels` channels: float [n, channels, height, width] -> logits [n, classes].

    Weights are initialised as He et al. 2015 (arXiv 1502.01852) for convolutions, and from torch's global generator:
    seed it first. Raises ValueError for a name that is not in the catalogue.
    """
    return _sequence(catalog.network(name).layers(channels, classes))


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
        conv = nn.Conv2d(layer.inputs, layer.outputs, layer.kernel, layer.stride, layer.padding, bias=False)
        nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
        return conv
    if isinstance(layer, catalog.BatchNorm):
        norm = nn.BatchNorm2d(layer.channels, eps=catalog.BATCHNORM_EPSILON, momentum=catalog.BATCHNORM_MOMENTUM)
        nn.init.constant_(norm.weight, 0.0 if layer.zero_scale else 1.0)
        return norm
    if isinstance(layer, catalog.ReLU):
        return nn.ReLU(inplace=True)
    if isinstance(layer, catalog.MaxPool):
        return nn.MaxPool2d(layer.kernel, layer.stride, layer.padding)
    if isinstance(layer, catalog.GlobalAveragePool):
        return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
    if isinstance(layer, catalog.Linear):
        return nn.Linear(layer.inputs, layer.outputs)
    if isinstance(layer, catalog.PadShortcut):
        return PadShortcut(layer)
    if isinstance(layer, catalog.Residual):
        return Residual(layer)
    raise AssertionError(f"models/pytorch.py has no module for {layer!r}")
