"""The framework-neutral catalogue of networks: layers, parameters, FLOPs.

A row is a function of (channels, classes, input size) that returns a tuple of layers. Each framework's builder
(`models/<framework>.py`) interprets the few kinds of layers, so every framework builds the same network from the same
row. The layer classes are defined in `models/layers.py` and re-exported here. Standard library only, Python 3.8 syntax.

Image networks return one vector of logits per image. Text networks are decoder-only transformers: they take a sequence
of tokens and return logits for the next token at each position.

Dropout is omitted even where a network was published with it: frameworks draw different random numbers and would no
longer compute the same.

To add a network, write its layers as a function and add it to `CATALOG`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Dict, List, Tuple

from models.layers import (
    BATCHNORM_EPSILON,
    BATCHNORM_MOMENTUM,
    GELU,
    LAYERNORM_EPSILON,
    BatchNorm,
    Convolution,
    Embedding,
    Flatten,
    GlobalAveragePool,
    Layer,
    LayerNorm,
    Layers,
    Linear,
    MaxPool,
    PadShortcut,
    Projection,
    ReLU,
    Residual,
    Scale,
    TransformerBlock,
    Whitening,
    flat,
    forward_flops,
    parameters,
    side_after,
    strided,
)

__all__ = [
    "BATCHNORM_EPSILON",
    "BATCHNORM_MOMENTUM",
    "CATALOG",
    "GELU",
    "IMAGES",
    "LAYERNORM_EPSILON",
    "TEXT",
    "BatchNorm",
    "Convolution",
    "Embedding",
    "Flatten",
    "GlobalAveragePool",
    "Layer",
    "LayerNorm",
    "Layers",
    "Linear",
    "MaxPool",
    "Network",
    "PadShortcut",
    "Projection",
    "ReLU",
    "Residual",
    "Scale",
    "TransformerBlock",
    "Whitening",
    "flat",
    "forward_flops",
    "network",
    "parameters",
    "side_after",
    "strided",
]

# Kinds of input of networks and data sets.
IMAGES, TEXT = "images", "text"


@dataclass(frozen=True)
class Network:
    """One row of the catalogue.

    Attributes:
        layers: function that returns the layers in order. Arguments for images: channels, classes, pixels per side; for
            text: unused, vocabulary size, tokens per sequence.
        min_image_size: smallest meaningful input: pixels per side, or tokens.
        source: publication of the network.
        inputs: IMAGES or TEXT.
        whitens: whether a layer is computed from the training images.
    """

    name: str
    layers: Callable[[int, int, int], Layers]
    min_image_size: int
    source: str
    inputs: str = IMAGES
    whitens: bool = False


def network(name: str) -> Network:
    """Look up a network. Raises ValueError listing the valid names."""
    if name not in CATALOG:
        raise ValueError(f"model '{name}' is not in the catalogue; it has: {', '.join(CATALOG)}")
    return CATALOG[name]


def _conv_bn(inputs: int, outputs: int, kernel: int, stride: int = 1, zero_scale: bool = False) -> Layers:
    return Convolution(inputs, outputs, kernel, stride, kernel // 2), BatchNorm(outputs, zero_scale)


def _basic_body(inputs: int, outputs: int, stride: int, zero_scale: bool) -> Layers:
    return (*_conv_bn(inputs, outputs, 3, stride), ReLU(), *_conv_bn(outputs, outputs, 3, zero_scale=zero_scale))


def _cifar_resnet(depth: int) -> Callable[[int, int, int], Layers]:
    """He et al. 2015, section 4.2: 6n+2 layers, three stages of 16, 32, 64 channels, option A shortcuts."""
    blocks = (depth - 2) // 6
    assert 6 * blocks + 2 == depth

    def layers(channels: int, classes: int, _: int) -> Layers:
        net: List[Layer] = [*_conv_bn(channels, 16, 3), ReLU()]
        width = 16
        for outputs in (16, 32, 64):
            for _ in range(blocks):
                stride = 1 if outputs == width else 2
                shortcut: Layers = () if stride == 1 else (PadShortcut(width, outputs, stride),)
                net.append(Residual(_basic_body(width, outputs, stride, zero_scale=False), shortcut))
                width = outputs
        return (*net, GlobalAveragePool(), Linear(width, classes))

    return layers


def _imagenet_resnet(blocks: Tuple[int, int, int, int], bottleneck: bool) -> Callable[[int, int, int], Layers]:
    """He et al. 2015, table 1, with projection shortcuts (option B).

    Bottlenecks have the stride in the 3x3 convolution ("v1.5"), as in the frameworks' own ResNet-50 benchmarks.
    """
    expansion = 4 if bottleneck else 1

    def body(inputs: int, width: int, stride: int) -> Layers:
        if not bottleneck:
            return _basic_body(inputs, width, stride, zero_scale=True)
        return (
            *_conv_bn(inputs, width, 1),
            ReLU(),
            *_conv_bn(width, width, 3, stride),
            ReLU(),
            *_conv_bn(width, width * expansion, 1, zero_scale=True),
        )

    def layers(channels: int, classes: int, _: int) -> Layers:
        net: List[Layer] = [*_conv_bn(channels, 64, 7, 2), ReLU(), MaxPool(3, 2, 1)]
        inputs = 64
        for stage, count in enumerate(blocks):
            width = 64 * 2**stage
            for block in range(count):
                stride = 2 if stage > 0 and block == 0 else 1
                outputs = width * expansion
                same = stride == 1 and inputs == outputs
                shortcut = () if same else _conv_bn(inputs, outputs, 1, stride)
                net.append(Residual(body(inputs, width, stride), shortcut))
                inputs = outputs
        return (*net, GlobalAveragePool(), Linear(inputs, classes))

    return layers


def _resnet9(channels: int, classes: int, image_size: int) -> Layers:
    """Nine weight layers, wide and shallow: few kernels, each large enough for a GPU.

    The first, third and fourth convolutions are followed by pooling. Two residual blocks have identity shortcuts.
    """

    def conv(inputs: int, outputs: int) -> Layers:
        return (*_conv_bn(inputs, outputs, 3), ReLU())

    def residual(width: int) -> Layer:
        # The sum of two ReLU outputs, so the ReLU behind it has no effect.
        return Residual((*conv(width, width), *conv(width, width)))

    halved = MaxPool(2, 2, 0)
    features = (
        *conv(channels, 64),
        *(*conv(64, 128), halved, residual(128)),
        *(*conv(128, 256), halved),
        *(*conv(256, 512), halved, residual(512)),
        MaxPool(image_size // 8, image_size // 8, 0),
    )
    return (*features, Flatten(), Linear(512, classes), Scale(0.125))


def _airbench94(channels: int, classes: int, image_size: int) -> Layers:
    """A whitening layer of 2x2 patches, then six 3x3 convolutions in three groups of two.

    The first convolution of a group is followed by pooling. BatchNorm has no scale, and its statistics follow only the
    last few steps. The convolutions start as the identity where they have inputs. Unlike the original,
    the last layer has biases.
    """

    def bn_gelu(width: int) -> Layers:
        return BatchNorm(width, scale=False, momentum=0.4), GELU()

    def conv(inputs: int, outputs: int) -> Layer:
        return Convolution(inputs, outputs, 3, 1, 1, identity=True)

    def group(inputs: int, width: int) -> Layers:
        return conv(inputs, width), MaxPool(2, 2, 0), *bn_gelu(width), conv(width, width), *bn_gelu(width)

    whitening = Whitening(channels, 2)
    features = (whitening, GELU(), *group(whitening.outputs, 64), *group(64, 256), *group(256, 256))
    side = side_after(features, image_size)
    return (*features, MaxPool(side, side, 0), Flatten(), Linear(256, classes), Scale(1 / 9))


def _conv_relu(inputs: int, outputs: int, kernel: int, stride: int, padding: int) -> Layers:
    return Convolution(inputs, outputs, kernel, stride, padding, bias=True), ReLU()


def _with_head(features: Layers, hidden: Tuple[int, ...], classes: int, image_size: int) -> Layers:
    """Append fully connected layers with ReLU of the given widths and an output layer to `features`."""
    side = side_after(features, image_size)
    assert side > 0, f"images of {image_size} pixels are too small"
    inputs = side**2 * [layer.outputs for layer in features if isinstance(layer, Convolution)][-1]
    net: List[Layer] = [*features, Flatten()]
    for outputs in hidden:
        net += [Linear(inputs, outputs), ReLU()]
        inputs = outputs
    return (*net, Linear(inputs, classes))


def _alexnet(channels: int, classes: int, image_size: int) -> Layers:
    """One tower with torchvision's sizes, without local response normalisation and dropout."""
    features = (
        *_conv_relu(channels, 64, 11, 4, 2),
        MaxPool(3, 2, 0),
        *_conv_relu(64, 192, 5, 1, 2),
        MaxPool(3, 2, 0),
        *_conv_relu(192, 384, 3, 1, 1),
        *_conv_relu(384, 256, 3, 1, 1),
        *_conv_relu(256, 256, 3, 1, 1),
        MaxPool(3, 2, 0),
    )
    return _with_head(features, (4096, 4096), classes, image_size)


def _vgg(stages: Tuple[Tuple[int, int], ...], hidden: Tuple[int, ...]) -> Callable[[int, int, int], Layers]:
    """stages: (number of 3x3 convolutions, channels), each followed by 2x2 max-pooling. No dropout."""

    def layers(channels: int, classes: int, image_size: int) -> Layers:
        features: List[Layer] = []
        for convolutions, outputs in stages:
            for _ in range(convolutions):
                features += _conv_relu(channels, outputs, 3, 1, 1)
                channels = outputs
            features.append(MaxPool(2, 2, 0))
        return _with_head(tuple(features), hidden, classes, image_size)

    return layers


def _cnn(width: int, depth: int) -> Callable[[int, int, int], Layers]:
    """Five stages of `depth` convolutions with 1, 2, 4, 8 and 8 times `width` channels, growing like VGG-16's.

    One hidden layer of 8 times `width`.
    """
    return _vgg(tuple((depth, times * width) for times in (1, 2, 4, 8, 8)), (8 * width,))


def _gpt(width: int, depth: int, heads: int) -> Callable[[int, int, int], Layers]:
    """GPT-2's architecture, except that the output matrix is not tied to the embedding.

    This lets any range of layers be placed on a device of its own.
    """

    def layers(_: int, vocabulary: int, context: int) -> Layers:
        blocks = (TransformerBlock(width, heads),) * depth
        return Embedding(vocabulary, context, width), *blocks, LayerNorm(width), Projection(width, vocabulary)

    return layers


_HE = "He et al. 2015, Deep Residual Learning for Image Recognition (arXiv 1512.03385)"
_OURS = "this program's own: the form of VGG in four sizes, for docs/studies.md"
_GPT2 = "Radford et al. 2019, Language Models are Unsupervised Multitask Learners, table 2"

CATALOG: Dict[str, Network] = {
    row.name: row
    for row in (
        *(Network(f"resnet{d}", _cifar_resnet(d), 8, f"{_HE}, section 4.2") for d in (20, 32, 44, 56, 110)),
        Network("resnet18", _imagenet_resnet((2, 2, 2, 2), bottleneck=False), 32, f"{_HE}, table 1"),
        Network("resnet50", _imagenet_resnet((3, 4, 6, 3), bottleneck=True), 32, f"{_HE}, table 1"),
        Network(
            "alexnet",
            _alexnet,
            63,
            "Krizhevsky 2014, One weird trick for parallelizing convolutional neural networks (arXiv 1404.5997)",
        ),
        Network(
            "vgg16",
            _vgg(((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)), (4096, 4096)),
            32,
            "Simonyan and Zisserman 2014, Very Deep Convolutional Networks (arXiv 1409.1556), table 1, D",
        ),
        Network("resnet9", _resnet9, 8, "Page 2018, How to Train Your ResNet 4: Architecture (myrtle.ai)"),
        Network(
            "airbench94",
            _airbench94,
            9,
            "Jordan 2024, 94% on CIFAR-10 in 3.29 Seconds on a Single GPU (arXiv 2404.00498), section 3",
            whitens=True,
        ),
        Network("cnn_small", _cnn(width=16, depth=1), 32, _OURS),
        Network("cnn_medium", _cnn(width=32, depth=1), 32, _OURS),
        Network("cnn_large", _cnn(width=48, depth=2), 32, _OURS),
        Network("cnn_xlarge", _cnn(width=64, depth=3), 32, _OURS),
        Network("gpt_tiny", _gpt(64, 2, 4), 1, "this program's own: the form of GPT-2, for tests", TEXT),
        # 64 per head, as in the published code; the paper gives only width and depth.
        Network("gpt2", _gpt(768, 12, 12), 1, _GPT2, TEXT),
        Network("gpt2_medium", _gpt(1024, 24, 16), 1, _GPT2, TEXT),
        Network("gpt2_large", _gpt(1280, 36, 20), 1, _GPT2, TEXT),
        Network("gpt2_xl", _gpt(1600, 48, 25), 1, _GPT2, TEXT),
    )
}
