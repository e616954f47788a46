"""Builds a network of the catalogue as a `gluon.HybridBlock`."""

from __future__ import annotations

from typing import Any, List, Optional, Tuple

import mxnet as mx
from mxnet import gluon
from mxnet.gluon import nn

from models import catalog, initial

# MXNet supports convolutions and fully connected layers of this type on GPUs only.
HALF = "float16"


def build(
    layers: catalog.Layers, seed: int, context: Optional[mx.Context] = None, half: bool = False
) -> gluon.HybridBlock:
    """Build a network with the initial weights of `models.initial`: float [n, channels, height, width] -> logits [n,
    classes].

    Args:
        context: the device; None: the CPU.
        half: convolutions, fully connected layers and activations use HALF. Weights, gradients, BatchNorm and logits
            stay float32.
    """
    network = _sequential(layers, half)
    if half:
        body, network = network, nn.HybridSequential()
        network.add(_cast(HALF), body, _cast("float32"))
    network.initialize(mx.init.Zero(), ctx=context or mx.cpu())
    for parameter, array in zip(parameters(network), initial.weights(layers, seed)):
        parameter.set_data(mx.nd.array(array))
    # Allocates the same memory in every step. A batch of another size, such as evaluation's last, only costs time.
    network.hybridize(static_alloc=True, static_shape=True)
    return network


def parameters(network: gluon.Block) -> List[gluon.Parameter]:
    """Trainable parameters in the order and layout of `models.initial`, which are Gluon's own."""
    return [parameter for parameter in network.collect_params().values() if parameter.grad_req != "null"]


def statistics(network: gluon.Block) -> List[gluon.Parameter]:
    """BatchNorm's running mean, variance, mean, variance, ..."""
    return [parameter for parameter in network.collect_params().values() if parameter.grad_req == "null"]


def normalised_sides(layers: catalog.Layers, side: int) -> Tuple[List[int], int]:
    """Return (pixels per side at each BatchNorm in order, pixels per side of the output), for images of `side`."""
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


class CastConvolution(nn.Conv2D):
    """Computes in HALF with weights cast to it."""

    def hybrid_forward(self, F: Any, x: Any, weight: Any, bias: Any = None) -> Any:
        return super().hybrid_forward(F, x, *_half(F, weight, bias))


class CastDense(nn.Dense):
    """Like `CastConvolution`."""

    def hybrid_forward(self, F: Any, x: Any, weight: Any, bias: Any = None) -> Any:
        return super().hybrid_forward(F, x, *_half(F, weight, bias))


class Residual(gluon.HybridBlock):
    def __init__(self, layer: catalog.Residual, half: bool) -> None:
        super().__init__()
        with self.name_scope():
            self.body = _sequential(layer.body, half)
            self.shortcut = _sequential(layer.shortcut, half)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.relu(self.body(x) + self.shortcut(x))


class PadShortcut(gluon.HybridBlock):
    """Several times faster than MXNet's own padding, which is not designed for channels."""

    def __init__(self, layer: catalog.PadShortcut) -> None:
        super().__init__()
        assert layer.outputs % layer.inputs == 0, layer
        self.stride, self.times = layer.stride, layer.outputs // layer.inputs

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        pixels = F.slice(x, begin=(None,) * 4, end=(None,) * 4, step=(1, 1, self.stride, self.stride))
        return F.concat(pixels, *[F.zeros_like(pixels)] * (self.times - 1), dim=1)


def _sequential(layers: catalog.Layers, half: bool) -> nn.HybridSequential:
    network = nn.HybridSequential()
    with network.name_scope():
        network.add(*(_block(layer, half) for layer in layers))
    return network


def _half(F: Any, *arrays: Any) -> List[Any]:
    return [array if array is None else F.cast(array, dtype=HALF) for array in arrays]


def _cast(kind: str) -> gluon.HybridBlock:
    return nn.HybridLambda(lambda F, x: F.cast(x, dtype=kind))


def _block(layer: catalog.Layer, half: bool) -> gluon.HybridBlock:
    if isinstance(layer, catalog.Convolution):
        sizes = {"kernel_size": layer.kernel, "strides": layer.stride, "padding": layer.padding}
        convolution = CastConvolution if half else nn.Conv2D
        return convolution(layer.outputs, in_channels=layer.inputs, use_bias=layer.bias, **sizes)
    if isinstance(layer, catalog.BatchNorm):
        # MXNet's momentum is the weight of the old statistics.
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
        return (CastDense if half else nn.Dense)(layer.outputs, in_units=layer.inputs)
    if isinstance(layer, catalog.Scale):
        return nn.HybridLambda(lambda F, x: x * layer.factor)
    if isinstance(layer, catalog.PadShortcut):
        return PadShortcut(layer)
    if isinstance(layer, catalog.Residual):
        return Residual(layer, half)
    raise AssertionError(f"models/mxnet.py has no block for {layer!r}")
