"""What a training step keeps from forward for backward: the bytes of activations, counted layer by layer.

As PyTorch's autograd keeps them (models/pytorch.py; other frameworks may keep less or more): each tensor once, however
many layers need it, what is overwritten in place not at all. Standard library only, no syntax newer than Python 3.8.

Not counted: what a layer needs only while it computes, such as the workspace of a convolution; gradients of
activations; BatchNorm's statistics of a batch, a few numbers per channel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple

from models import catalog

FLOAT, INDEX = 4, 8  # bytes of a number in single precision, and of an index


def bytes_per_sample(layers: catalog.Layers, channels: int, size: int, number_bytes: int) -> int:
    """Of one sample, the loss's own included.

    channels: of images. size: pixels of their side, or tokens of a sequence. number_bytes: of the numbers that
    convolutions and fully connected layers compute with: 4, or with automatic mixed precision 2.
    """
    if isinstance(layers[0], catalog.Embedding):
        return _of_text(layers, size, number_bytes)
    kept, end = _of_images(layers, _Pixels(channels, size), number_bytes)
    return kept + _loss(end.channels)


def weight_copies_bytes(layers: catalog.Layers, number_bytes: int) -> int:
    """Of the weights in half precision, which automatic mixed precision makes in forward and keeps for backward:
    matrices and kernels."""
    return 0 if number_bytes == FLOAT else number_bytes * _matrices(layers)


@dataclass(frozen=True)
class _Pixels:
    """What flows from layer to layer, of one sample. kept: whether it is counted already."""

    channels: int
    side: int
    kept: bool = False

    @property
    def numbers(self) -> int:
        return self.channels * self.side**2


def _of_images(layers: catalog.Layers, x: _Pixels, number_bytes: int) -> Tuple[int, _Pixels]:
    """(bytes kept, what comes out)."""
    total = 0
    for layer in layers:
        if isinstance(layer, catalog.Residual):
            body, after = _of_images(layer.body, x, number_bytes)
            # The body's first convolution has kept what both begin with.
            shortcut, _ = _of_images(layer.shortcut, _Pixels(x.channels, x.side, kept=True), number_bytes)
            # The sum is a tensor of its own; a ReLU in place makes it the block's output, and keeps it.
            x = _Pixels(after.channels, after.side, kept=True)
            total += body + shortcut + x.numbers * number_bytes
            continue
        # Of a ReLU in place, it is the output that is kept.
        keeps = (
            *(catalog.Convolution, catalog.Whitening, catalog.BatchNorm, catalog.MaxPool, catalog.Linear),
            *(catalog.ReLU, catalog.GELU),
        )
        if isinstance(layer, keeps) and not x.kept:
            total += x.numbers * number_bytes
        x = _after(layer, x)
        if isinstance(layer, catalog.MaxPool):  # where each maximum was
            total += x.numbers * INDEX
    return total, x


def _after(layer: catalog.Layer, x: _Pixels) -> _Pixels:
    if isinstance(layer, catalog.Convolution):
        return _Pixels(layer.outputs, catalog.strided(x.side + 2 * layer.padding, layer.kernel, layer.stride))
    if isinstance(layer, catalog.Whitening):
        return _Pixels(layer.outputs, x.side - layer.kernel + 1)
    if isinstance(layer, catalog.MaxPool):
        return _Pixels(x.channels, catalog.strided(x.side + 2 * layer.padding, layer.kernel, layer.stride))
    if isinstance(layer, (catalog.BatchNorm, catalog.GELU, catalog.Scale)):
        return _Pixels(x.channels, x.side)
    if isinstance(layer, catalog.ReLU):
        return _Pixels(x.channels, x.side, kept=True)
    if isinstance(layer, catalog.GlobalAveragePool):
        return _Pixels(x.channels, 1)
    if isinstance(layer, catalog.Flatten):
        return _Pixels(x.numbers, 1, x.kept)
    if isinstance(layer, catalog.PadShortcut):
        return _Pixels(layer.outputs, catalog.strided(x.side, 1, layer.stride))
    if isinstance(layer, catalog.Linear):
        return _Pixels(layer.outputs, 1)
    raise AssertionError(f"models/activations.py knows nothing of {layer!r} in a network for images")


def _of_text(layers: catalog.Layers, tokens: int, number_bytes: int) -> int:
    """What flows from block to block, and what LayerNorm computes, is in single precision, also in mixed precision."""
    half = number_bytes < FLOAT
    per_token = 0
    for layer in layers:
        if isinstance(layer, catalog.Embedding):
            per_token += INDEX  # the tokens themselves
        elif isinstance(layer, catalog.LayerNorm):
            per_token += _layer_norm(layer.width)
        elif isinstance(layer, catalog.TransformerBlock):
            per_token += 2 * _layer_norm(layer.width)
            # In half precision, query, key and value each make a copy of their own of the norm's output.
            inputs = 3 if half else 1
            # query, key, value, and attention's output; behind the second norm: its output, that of expand, and GELU's.
            per_token += (inputs + 3 + 1 + 1 + 4 + 4) * layer.width * number_bytes
            per_token += layer.heads * FLOAT  # attention's logarithms of sums; its weights are computed again
        elif isinstance(layer, catalog.Projection):
            per_token += layer.inputs * number_bytes + _loss(layer.outputs)
        else:
            raise AssertionError(f"models/activations.py knows nothing of {layer!r} in a network for text")
    return tokens * per_token


def _layer_norm(width: int) -> int:
    """Its input, mean and deviation, of one token."""
    return (width + 2) * FLOAT


def _loss(classes: int) -> int:
    """Of cross-entropy: logarithms of probabilities, and what was to be predicted."""
    return classes * FLOAT + INDEX


def _matrices(layers: catalog.Layers) -> int:
    count = 0
    for layer in catalog.flat(layers):
        if isinstance(layer, catalog.Convolution):
            count += layer.inputs * layer.kernel**2 * layer.outputs
        elif isinstance(layer, (catalog.Linear, catalog.Projection)):
            count += layer.inputs * layer.outputs
        elif isinstance(layer, catalog.TransformerBlock):
            count += 12 * layer.width**2
    return count
