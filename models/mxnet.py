"""A row of the catalogue as a `gluon.HybridBlock`."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn

from models import catalog, initial


def build(layers: catalog.Layers, seed: int, context: Optional[mx.Context] = None) -> gluon.HybridBlock:
    """A network of the catalogue, float [n, channels, height, width] -> logits [n, classes], with the weights that
    `models.initial` makes from the seed; on `context`, the CPU without one."""
    network = _sequential(layers)
    network.initialize(mx.init.Zero(), ctx=context or mx.cpu())
    for parameter, array in zip(parameters(network), initial.weights(layers, seed)):
        parameter.set_data(mx.nd.array(array))
    # The same memory in every step. What has a shape of its own, such as a last batch in evaluation, only costs time.
    network.hybridize(static_alloc=True, static_shape=True)
    return network


def parameters(network: gluon.Block) -> List[gluon.Parameter]:
    """The trainable ones, in the order and the layout of `models.initial`, which are Gluon's own."""
    return [parameter for parameter in network.collect_params().values() if parameter.grad_req != "null"]


def statistics(network: gluon.Block) -> List[gluon.Parameter]:
    """BatchNorm's running mean, variance, mean, variance, ..."""
    return [parameter for parameter in network.collect_params().values() if parameter.grad_req == "null"]


def normalised_sides(layers: catalog.Layers, side: int) -> Tuple[List[int], int]:
    """(pixels of a side at each BatchNorm, in order; pixels of a side after the layers), for images of `side`."""
    sides: List[int] = []
    for layer in layers:
        if isinstance(layer, catalog.BatchNorm):
            sides.append(side)
        elif isinstance(layer, (catalog.Convolution, catalog.MaxPool)):
            side = (side + 2 * layer.padding - layer.kernel) // layer.stride + 1
        elif isinstance(layer, catalog.Residual):
            body, after = normalised_sides(layer.body, side)
            sides += body + normalised_sides(layer.shortcut, side)[0]
            side = after
    return sides, side


class Residual(gluon.HybridBlock):
    def __init__(self, layer: catalog.Residual) -> None:
        super().__init__()
        with self.name_scope():
            self.body = _sequential(layer.body)
            self.shortcut = _sequential(layer.shortcut)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.relu(self.body(x) + self.shortcut(x))


class PadShortcut(gluon.HybridBlock):
    """Several times faster than with MXNet's own padding, which is not made for channels."""

    def __init__(self, layer: catalog.PadShortcut) -> None:
        super().__init__()
        assert layer.outputs % layer.inputs == 0, layer
        self.stride, self.times = layer.stride, layer.outputs // layer.inputs

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        pixels = F.slice(x, begin=(None,) * 4, end=(None,) * 4, step=(1, 1, self.stride, self.stride))
        return F.concat(pixels, *[F.zeros_like(pixels)] * (self.times - 1), dim=1)


def _sequential(layers: catalog.Layers) -> nn.HybridSequential:
    network = nn.HybridSequential()
    with network.name_scope():
        network.add(*map(_block, layers))
    return network


def _block(layer: catalog.Layer) -> gluon.HybridBlock:
    if isinstance(layer, catalog.Convolution):
        sizes = {"kernel_size": layer.kernel, "strides": layer.stride, "padding": layer.padding}
        return nn.Conv2D(layer.outputs, in_channels=layer.inputs, use_bias=layer.bias, **sizes)
    if isinstance(layer, catalog.BatchNorm):
        # MXNet counts the weight of what was before.
        momentum, epsilon = 1 - catalog.BATCHNORM_MOMENTUM, catalog.BATCHNORM_EPSILON
        return nn.BatchNorm(momentum=momentum, epsilon=epsilon, scale=True, in_channels=layer.channels)
    if isinstance(layer, catalog.ReLU):
        return nn.Activation("relu")
    if isinstance(layer, catalog.MaxPool):
        return nn.MaxPool2D(layer.kernel, layer.stride, layer.padding)
    if isinstance(layer, catalog.GlobalAveragePool):
        return nn.GlobalAvgPool2D()
    if isinstance(layer, catalog.Flatten):
        return nn.Flatten()
    if isinstance(layer, catalog.Linear):
        return nn.Dense(layer.outputs, in_units=layer.inputs)
    if isinstance(layer, catalog.Scale):
        return nn.HybridLambda(lambda F, x: x * layer.factor)
    if isinstance(layer, catalog.PadShortcut):
        return PadShortcut(layer)
    if isinstance(layer, catalog.Residual):
        return Residual(layer)
    raise AssertionError(f"models/mxnet.py has no block for {layer!r}")
