"""The kinds of layers, and properties computed from a network's layers.

`models/catalog.py` is the catalogue of networks. Standard library only, Python 3.8 syntax.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator, Tuple, Union

# Shared by all frameworks, with this momentum unless a row has its own. `BATCHNORM_MOMENTUM` is the weight of the new
# batch, as in PyTorch; TensorFlow and Keras call 1 minus it "momentum".
BATCHNORM_EPSILON = 1e-5
BATCHNORM_MOMENTUM = 0.1
LAYERNORM_EPSILON = 1e-5


@dataclass(frozen=True)
class Convolution:
    """Square kernel with equal explicit zero padding on all sides. bias: only if no BatchNorm follows.

    identity: its first outputs start as its inputs, one each (Jordan 2024, arXiv 2404.00498, section 3.3).
    """

    inputs: int
    outputs: int
    kernel: int
    stride: int
    padding: int
    bias: bool = False
    identity: bool = False


@dataclass(frozen=True)
class Whitening:
    """Unpadded convolution with a fixed kernel computed from the training images (`initial.whitening`).

    The kernel holds the principal components of `kernel` x `kernel` patches, scaled to unit variance, followed by their
    negatives. Only its bias is trained, starting from 0. Always the first layer (Page 2019, part 8; Jordan 2024, arXiv
    2404.00498, section 3.2).
    """

    inputs: int
    kernel: int

    @property
    def outputs(self) -> int:
        return 2 * self.inputs * self.kernel**2


@dataclass(frozen=True)
class BatchNorm:
    channels: int
    # The last BatchNorm of a residual body can start at scale 0, so that the block starts as the identity (Goyal et al.
    # 2017, section 5.1). The CIFAR networks of He et al. 2015 do not.
    zero_scale: bool = False
    # False: the scale is fixed at 1 and only the shift is trained.
    scale: bool = True
    momentum: float = BATCHNORM_MOMENTUM


@dataclass(frozen=True)
class ReLU:
    pass


@dataclass(frozen=True)
class GELU:
    """x times the normal CDF of x, not approximated (Hendrycks and Gimpel 2016, arXiv 1606.08415)."""


@dataclass(frozen=True)
class MaxPool:
    kernel: int
    stride: int
    padding: int


@dataclass(frozen=True)
class GlobalAveragePool:
    """Mean over height and width; returns a vector."""


@dataclass(frozen=True)
class Flatten:
    """Flatten in channel-major order, as PyTorch does, also in channels-last frameworks.

    The weights of the next layer then mean the same everywhere.
    """


@dataclass(frozen=True)
class Linear:
    """Fully connected layer with bias."""

    inputs: int
    outputs: int


@dataclass(frozen=True)
class Scale:
    """Multiply by a constant, which keeps logits small and training from becoming overconfident."""

    factor: float


@dataclass(frozen=True)
class PadShortcut:
    """He et al. 2015, option A: take every `stride`-th pixel and zero-pad new channels; no parameters."""

    inputs: int
    outputs: int
    stride: int


@dataclass(frozen=True)
class Residual:
    """`ReLU(body(x) + shortcut(x))`; an empty shortcut is the identity."""

    body: Tuple[Layer, ...]
    shortcut: Tuple[Layer, ...] = ()


@dataclass(frozen=True)
class Embedding:
    """Tokens [n, up to context] -> [n, same, width]: a learned token vector plus a position vector."""

    vocabulary: int
    context: int
    width: int


@dataclass(frozen=True)
class LayerNorm:
    """Layer normalisation over the last axis, with scale and shift (Ba et al. 2016, arXiv 1607.06450)."""

    width: int


@dataclass(frozen=True)
class TransformerBlock:
    """Pre-LN transformer block: x + attention(LayerNorm(x)), then x + MLP(LayerNorm(x)).

    Causal attention with `heads` heads of width / heads; hidden layer of 4 times the width with tanh-approximated GELU;
    biases everywhere. Weights in order: norm1, query, key, value, project, norm2, expand, contract.
    """

    width: int
    heads: int

    @property
    def head_width(self) -> int:
        assert self.width % self.heads == 0, self
        return self.width // self.heads


@dataclass(frozen=True)
class Projection:
    """Fully connected layer without bias: the output layer of a language model."""

    inputs: int
    outputs: int


_OfImages = Union[
    Convolution,
    Whitening,
    BatchNorm,
    ReLU,
    GELU,
    MaxPool,
    GlobalAveragePool,
    Flatten,
    Linear,
    Scale,
    PadShortcut,
    Residual,
]
_OfText = Union[Embedding, LayerNorm, TransformerBlock, Projection]
Layer = Union[_OfImages, _OfText]
Layers = Tuple[Layer, ...]


def parameters(layers: Layers) -> int:
    """Number of trainable parameters: weights, biases, and scale and shift of BatchNorm and LayerNorm."""
    count = 0
    for layer in flat(layers):
        if isinstance(layer, Convolution):
            count += (layer.inputs * layer.kernel**2 + layer.bias) * layer.outputs
        elif isinstance(layer, BatchNorm):
            count += (1 + layer.scale) * layer.channels
        elif isinstance(layer, Whitening):
            count += layer.outputs
        elif isinstance(layer, Linear):
            count += (layer.inputs + 1) * layer.outputs
        elif isinstance(layer, Embedding):
            count += (layer.vocabulary + layer.context) * layer.width
        elif isinstance(layer, LayerNorm):
            count += 2 * layer.width
        elif isinstance(layer, TransformerBlock):
            # Matrices: query, key, value, project, expand, contract. Vectors: two per norm, and the biases.
            count += (4 + 4 + 4) * layer.width**2 + (2 * 2 + 4 + 4 + 1) * layer.width
        elif isinstance(layer, Projection):
            count += layer.inputs * layer.outputs
    return count


def forward_flops(layers: Layers, size: int) -> int:
    """Floating-point operations of the forward pass for one sample.

    Counts convolutions, fully connected layers and the two products of attention, which count in full although half is
    masked. A multiply-add counts as 2. A training step takes about three times as many.

    Args:
        layers: the network.
        size: pixels per side of an image, or tokens of a sequence.
    """
    return _flops(layers, size)[0]


def flat(layers: Layers) -> Iterator[Layer]:
    """All layers in order, with residual blocks expanded: body first, then shortcut."""
    for layer in layers:
        if isinstance(layer, Residual):
            yield from flat(layer.body)
            yield from flat(layer.shortcut)
        else:
            yield layer


def side_after(layers: Layers, size: int) -> int:
    """Pixels per side of the output for images of `size` pixels per side."""
    return _flops(layers, size)[1]


def _flops(layers: Layers, size: int) -> Tuple[int, int]:
    """Return (FLOPs, pixels per side of the output, or tokens)."""
    total = 0
    for layer in layers:
        if isinstance(layer, Convolution):
            size = strided(size + 2 * layer.padding, layer.kernel, layer.stride)
            total += 2 * layer.inputs * layer.outputs * layer.kernel**2 * size**2
        elif isinstance(layer, Whitening):
            size -= layer.kernel - 1
            total += 2 * layer.inputs * layer.outputs * layer.kernel**2 * size**2
        elif isinstance(layer, MaxPool):
            size = strided(size + 2 * layer.padding, layer.kernel, layer.stride)
        elif isinstance(layer, (GlobalAveragePool, Flatten)):
            size = 1
        elif isinstance(layer, Linear):
            total += 2 * layer.inputs * layer.outputs
        elif isinstance(layer, PadShortcut):
            size = strided(size, 1, layer.stride)
        elif isinstance(layer, TransformerBlock):
            total += 2 * size * 12 * layer.width**2 + 2 * 2 * size**2 * layer.width
        elif isinstance(layer, Projection):
            total += 2 * size * layer.inputs * layer.outputs
        elif isinstance(layer, Residual):
            body, after = _flops(layer.body, size)
            shortcut, after_shortcut = _flops(layer.shortcut, size)
            assert after == after_shortcut, f"residual branches of different size: {layer}"
            total, size = total + body + shortcut, after
    return total, size


def strided(padded: int, kernel: int, stride: int) -> int:
    return (padded - kernel) // stride + 1
