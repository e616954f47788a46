"""Bytes of activations that a training step keeps from forward for backward, layer by layer.

Models PyTorch's autograd (models/pytorch.py; other frameworks may keep less or more): each tensor counts once, however
many layers use it, and values overwritten in place do not count. Standard library only, Python 3.8 syntax.

Not counted: temporary memory of a layer, such as the workspace of a convolution; gradients of activations; BatchNorm's
batch statistics, a few numbers per channel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple

from models import catalog

FLOAT, INDEX = 4, 8  # bytes of a single-precision number and of an index


def bytes_per_sample(layers: catalog.Layers, channels: int, size: int, number_bytes: int) -> int:
    """Bytes kept per sample, including those of the loss.

    Args:
        layers: the network.
        channels: image channels.
        size: pixels per side of an image, or tokens of a sequence.
        number_bytes: bytes per number in convolutions and fully connected layers: 4, or 2 with automatic mixed
            precision.
    """
    if isinstance(layers[0], catalog.Embedding):
        return _of_text(layers, size, number_bytes)
    kept, end = _of_images(layers, _Pixels(channels, size), number_bytes)
    return kept + _loss(end.channels)


def weight_copies_bytes(layers: catalog.Layers, number_bytes: int) -> int:
    """Bytes of the half-precision copies of matrices and kernels that automatic mixed precision keeps for backward."""
    return 0 if number_bytes == FLOAT else number_bytes * _matrices(layers)


@dataclass(frozen=True)
class _Pixels:
    """A tensor between two layers, per sample. kept: whether its bytes are already counted."""

    channels: int
    side: int
    kept: bool = False

    @property
    def numbers(self) -> int:
        return self.channels * self.side**2


def _of_images(layers: catalog.Layers, x: _Pixels, number_bytes: int) -> Tuple[int, _Pixels]:
    """Return (bytes kept, output)."""
    total = 0
    for layer in layers:
        if isinstance(layer, catalog.Residual):
            body, after = _of_images(layer.body, x, number_bytes)
            # The shared input was counted with the body's first convolution.
            shortcut, _ = _of_images(layer.shortcut, _Pixels(x.channels, x.side, kept=True), number_bytes)
            # The sum is a new tensor; an in-place ReLU turns it into the block's output and keeps it.
            x = _Pixels(after.channels, after.side, kept=True)
            total += body + shortcut + x.numbers * number_bytes
            continue
        # An in-place ReLU keeps its output.
        keeps = (
            *(catalog.Convolution, catalog.Whitening, catalog.BatchNorm, catalog.MaxPool, catalog.Linear),
            *(catalog.ReLU, catalog.GELU),
        )
        if isinstance(layer, keeps) and not x.kept:
            total += x.numbers * number_bytes
        x = _after(layer, x)
        if isinstance(layer, catalog.MaxPool):  # indices of the maxima
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
    """Bytes kept per sample of text. The residual stream and LayerNorm stay in single precision, also in mixed
    precision."""
    half = number_bytes < FLOAT
    per_token = 0
    for layer in layers:
        if isinstance(layer, catalog.Embedding):
            per_token += INDEX  # the tokens themselves
        elif isinstance(layer, catalog.LayerNorm):
            per_token += _layer_norm(layer.width)
        elif isinstance(layer, catalog.TransformerBlock):
            per_token += 2 * _layer_norm(layer.width)
            # In half precision, query, key and value each keep their own copy of the norm's output.
            inputs = 3 if half else 1
            # query, key, value and the attention output; after the second norm its output, expand's and GELU's.
            per_token += (inputs + 3 + 1 + 1 + 4 + 4) * layer.width * number_bytes
            per_token += layer.heads * FLOAT  # attention's log-sum-exp; its weights are recomputed
        elif isinstance(layer, catalog.Projection):
            per_token += layer.inputs * number_bytes + _loss(layer.outputs)
        else:
            raise AssertionError(f"models/activations.py knows nothing of {layer!r} in a network for text")
    return tokens * per_token


def _layer_norm(width: int) -> int:
    """Input, mean and deviation per token."""
    return (width + 2) * FLOAT


def _loss(classes: int) -> int:
    """Cross-entropy: log-probabilities and targets."""
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
