"""The framework-neutral table of networks: layers, parameters, FLOPs.

A row is a function of (channels, classes, size of the input) that gives a tuple of layers. A framework's builder
(`models/<framework>.py`) is an interpreter of these few layer kinds, so that every framework builds the same
network from the same row. Standard library only, no syntax newer than Python 3.8.

Networks for images end in one vector of logits for each image. Networks for text take a sequence of tokens and end in
one vector of logits for each token, those of the next one; they are decoder-only transformers.

There is no dropout, also where a network was published with it: frameworks draw other random numbers, and would no
longer compute the same.

To add a network: write its layers as one function and add it to `CATALOG`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Dict, Iterator, List, Tuple, Union

# One epsilon and one momentum for all frameworks. `BATCHNORM_MOMENTUM` is the weight of the new batch, as PyTorch
# counts; TensorFlow and Keras call 1 minus it "momentum".
BATCHNORM_EPSILON = 1e-5
BATCHNORM_MOMENTUM = 0.1
LAYERNORM_EPSILON = 1e-5


@dataclass(frozen=True)
class Convolution:
    """Square kernel, the same explicit zero padding on all four sides. bias: only where no BatchNorm follows."""

    inputs: int
    outputs: int
    kernel: int
    stride: int
    padding: int
    bias: bool = False


@dataclass(frozen=True)
class BatchNorm:
    channels: int
    # The last BatchNorm of a residual body can start at scale 0, so that the block starts as identity
    # (Goyal et al. 2017, section 5.1). The CIFAR networks of He et al. 2015 do not.
    zero_scale: bool = False


@dataclass(frozen=True)
class ReLU:
    pass


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
    Convolution, BatchNorm, ReLU, MaxPool, GlobalAveragePool, Flatten, Linear, Scale, PadShortcut, Residual
]
_OfText = Union[Embedding, LayerNorm, TransformerBlock, Projection]
Layer = Union[_OfImages, _OfText]
Layers = Tuple[Layer, ...]

# What a network takes, and what a data set holds.
IMAGES, TEXT = "images", "text"


@dataclass(frozen=True)
class Network:
    """One row of the table.

    layers: for images (input channels, classes, pixels of a side of the square images), for text (unused, size of the
    vocabulary, tokens of a sequence) -> the layers in order.
    min_image_size: pixels of the smallest square image that the network makes sense for; of text, tokens.
    source: where the network was published. inputs: IMAGES or TEXT.
    """

    name: str
    layers: Callable[[int, int, int], Layers]
    min_image_size: int
    source: str
    inputs: str = IMAGES


def network(name: str) -> Network:
    """The row `name`. Raises ValueError that lists the rows."""
    if name not in CATALOG:
        raise ValueError(f"model '{name}' is not in the catalogue; it has: {', '.join(CATALOG)}")
    return CATALOG[name]


def parameters(layers: Layers) -> int:
    """Trainable parameters: weights, biases, and scale and shift of BatchNorm and LayerNorm."""
    count = 0
    for layer in flat(layers):
        if isinstance(layer, Convolution):
            count += (layer.inputs * layer.kernel**2 + layer.bias) * layer.outputs
        elif isinstance(layer, BatchNorm):
            count += 2 * layer.channels
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


def _flops(layers: Layers, size: int) -> Tuple[int, int]:
    """(FLOPs, pixels of a side after the layers); of text, its tokens."""
    total = 0
    for layer in layers:
        if isinstance(layer, Convolution):
            size = strided(size + 2 * layer.padding, layer.kernel, layer.stride)
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
    """He et al. 2015, table 1, with projection shortcuts (option B) and, in bottlenecks, the stride in the 3x3
    convolution ("v1.5", as all frameworks' own ResNet-50 benchmarks have it)."""
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
    """Nine layers with weights, wide and shallow: few kernels, each large enough for a GPU. Behind the first, third and
    fourth convolutions the image is halved; two residual blocks, whose shortcut is the identity."""

    def conv(inputs: int, outputs: int) -> Layers:
        return (*_conv_bn(inputs, outputs, 3), ReLU())

    def residual(width: int) -> Layer:
        # The sum of what two ReLUs gave: the one behind it changes nothing.
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


def _conv_relu(inputs: int, outputs: int, kernel: int, stride: int, padding: int) -> Layers:
    return Convolution(inputs, outputs, kernel, stride, padding, bias=True), ReLU()


def _with_head(features: Layers, hidden: Tuple[int, ...], classes: int, image_size: int) -> Layers:
    """Behind the features: fully connected layers with ReLU of `hidden` outputs each, and one that gives the logits."""
    side = _flops(features, image_size)[1]
    assert side > 0, f"images of {image_size} pixels are too small"
    inputs = side**2 * [layer.outputs for layer in features if isinstance(layer, Convolution)][-1]
    net: List[Layer] = [*features, Flatten()]
    for outputs in hidden:
        net += [Linear(inputs, outputs), ReLU()]
        inputs = outputs
    return (*net, Linear(inputs, classes))


def _alexnet(channels: int, classes: int, image_size: int) -> Layers:
    """One tower, with the sizes of torchvision's: neither local response normalisation nor dropout."""
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
    """stages: (number of 3x3 convolutions, their channels), behind each stage a 2x2 max-pooling. No dropout."""

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
    """Five stages of `depth` convolutions each, with 1, 2, 4, 8 and 8 times `width` channels, as those of VGG-16 grow;
    one hidden layer of 8 times `width`."""
    return _vgg(tuple((depth, times * width) for times in (1, 2, 4, 8, 8)), (8 * width,))


def _gpt(width: int, depth: int, heads: int) -> Callable[[int, int, int], Layers]:
    """The form of GPT-2. The matrix of the output is one of its own, not that of the embedding as published: then any
    stretch of the layers can be on a device of its own."""

    def layers(_: int, vocabulary: int, context: int) -> Layers:
        blocks = (TransformerBlock(width, heads),) * depth
        return Embedding(vocabulary, context, width), *blocks, LayerNorm(width), Projection(width, vocabulary)

    return layers


_HE = "He et al. 2015, Deep Residual Learning for Image Recognition (arXiv 1512.03385)"
_OURS = "this program's own: the form of VGG in four sizes, for docs/studies/indoor_model_sizes.md"
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
        Network("cnn_small", _cnn(width=16, depth=1), 32, _OURS),
        Network("cnn_medium", _cnn(width=32, depth=1), 32, _OURS),
        Network("cnn_large", _cnn(width=48, depth=2), 32, _OURS),
        Network("cnn_xlarge", _cnn(width=64, depth=3), 32, _OURS),
        Network("gpt_tiny", _gpt(64, 2, 4), 1, "this program's own: the form of GPT-2, for tests", TEXT),
        # Heads of 64 each, as in the published code; the paper has width and depth only.
        Network("gpt2", _gpt(768, 12, 12), 1, _GPT2, TEXT),
        Network("gpt2_medium", _gpt(1024, 24, 16), 1, _GPT2, TEXT),
        Network("gpt2_large", _gpt(1280, 36, 20), 1, _GPT2, TEXT),
        Network("gpt2_xl", _gpt(1600, 48, 25), 1, _GPT2, TEXT),
    )
}
