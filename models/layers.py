"""What networks are written in: the kinds of layers, and what follows from a network's layers by arithmetic.

`models/catalog.py` is the table of networks. Standard library only, no syntax newer than Python 3.8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator, Tuple, Union

# One epsilon for all frameworks, and one momentum where a row has no other. `BATCHNORM_MOMENTUM` is the weight of the
# new batch, as PyTorch counts; TensorFlow and Keras call 1 minus it "momentum".
BATCHNORM_EPSILON = 1e-5
BATCHNORM_MOMENTUM = 0.1
LAYERNORM_EPSILON = 1e-5


@dataclass(frozen=True)
class Convolution:
    """Square kernel, the same explicit zero padding on all four sides. bias: only where no BatchNorm follows.

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
    """A convolution without padding whose kernel is made from the training images (`initial.whitening`) and stays as it
    is: the principal components of patches of `kernel` x `kernel` pixels, each scaled to a variance of 1, and behind
    them the same negated. Only its bias is trained, from 0. The first layer (Page 2019, part 8; Jordan 2024, arXiv
    2404.00498, section 3.2)."""

    inputs: int
    kernel: int

    @property
    def outputs(self) -> int:
        return 2 * self.inputs * self.kernel**2


@dataclass(frozen=True)
class BatchNorm:
    channels: int
    # The last BatchNorm of a residual body can start at scale 0, so that the block starts as identity
    # (Goyal et al. 2017, section 5.1). The CIFAR networks of He et al. 2015 do not.
    zero_scale: bool = False
    # Without one it is 1, and only the shift is trained.
    scale: bool = True
    momentum: float = BATCHNORM_MOMENTUM


@dataclass(frozen=True)
class ReLU:
    pass


@dataclass(frozen=True)
class GELU:
    """x times the normal distribution function of x (Hendrycks and Gimpel 2016, arXiv 1606.08415), not approximated."""


@dataclass(frozen=True)
class MaxPool:
    kernel: int
    stride: int
    padding: int


@dataclass(frozen=True)
class GlobalAveragePool:
    """Mean over height and width; gives a vector."""


@dataclass(frozen=True)
class Flatten:
    """A vector of all pixels of the first channel row by row, then those of the second, ...: PyTorch's order, also in
    frameworks that keep the channels last, so that the same weights of the next layer mean the same everywhere."""


@dataclass(frozen=True)
class Linear:
    """Fully connected, with bias."""

    inputs: int
    outputs: int


@dataclass(frozen=True)
class Scale:
    """Times a constant: what keeps logits small where training would make them too sure."""

    factor: float


@dataclass(frozen=True)
class PadShortcut:
    """He et al. 2015, option A: every `stride`-th pixel, new channels filled with zeros; no parameters."""

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
    """Tokens [n, up to context] -> [n, the same, width]: a learned vector for each token of the vocabulary, plus one
    for each position."""

    vocabulary: int
    context: int
    width: int


@dataclass(frozen=True)
class LayerNorm:
    """Over the last axis, with scale and shift (Ba et al. 2016, arXiv 1607.06450)."""

    width: int


@dataclass(frozen=True)
class TransformerBlock:
    """x + attention(LayerNorm(x)), then x + MLP(LayerNorm(x)): layer normalisation in front (pre-LN), causal attention
    of `heads` heads of width / heads each, a hidden layer of 4 times the width with GELU in its tanh form; biases
    everywhere. Weights in the order: norm1, query, key, value, project, norm2, expand, contract."""

    width: int
    heads: int

    @property
    def head_width(self) -> int:
        assert self.width % self.heads == 0, self
        return self.width // self.heads


@dataclass(frozen=True)
class Projection:
    """Fully connected, without bias: what gives a language model's logits."""

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
    """Trainable parameters: weights, biases, and scale and shift of BatchNorm and LayerNorm."""
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
            # Matrices: query, key, value, project; expand and contract. Vectors: two of each norm, and the biases.
            count += (4 + 4 + 4) * layer.width**2 + (2 * 2 + 4 + 4 + 1) * layer.width
        elif isinstance(layer, Projection):
            count += layer.inputs * layer.outputs
    return count


def forward_flops(layers: Layers, size: int) -> int:
    """Floating-point operations of the forward pass for one sample: convolutions, fully connected layers, and the two
    products of attention, which count whole although half of them is masked.

    size: pixels of an image's side, or tokens of a sequence. A multiply-add counts as 2. A training step takes about
    three times as many (forward, and two products of the same size backward).
    """
    return _flops(layers, size)[0]


def flat(layers: Layers) -> Iterator[Layer]:
    """Every layer in order, residual blocks opened: body first, then shortcut."""
    for layer in layers:
        if isinstance(layer, Residual):
            yield from flat(layer.body)
            yield from flat(layer.shortcut)
        else:
            yield layer


def side_after(layers: Layers, size: int) -> int:
    """Pixels of a side of what the layers make of images of `size` pixels."""
    return _flops(layers, size)[1]


def _flops(layers: Layers, size: int) -> Tuple[int, int]:
    """(FLOPs, pixels of a side after the layers); of text, its tokens."""
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
