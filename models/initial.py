"""The weights that every framework starts from: made here, from the seed, so that they are the same in all of them.

A network's arrays come in one order, that of `catalog.flat`, and in one layout, PyTorch's: a convolution has its kernel
[outputs, inputs, height, width], and its bias [outputs] where it has one; BatchNorm its scale [channels], where it has
one, and its shift [channels]; a whitening layer its bias [outputs], as its kernel is not trained; a fully connected
layer its matrix [outputs, inputs] and its bias [outputs]; an embedding the vectors of the tokens [vocabulary, width]
and of the positions [context, width]; LayerNorm its scale and its shift [width]. A framework's builder
(`models/<framework>.py`) takes them from there to its own layout, and back.
"""

from __future__ import annotations

import itertools
import math
from typing import List, Sequence, Tuple

import numpy as np

from models import catalog

# Of images, from the first on, that a whitening layer is made from.
WHITENING_IMAGES = 5000
# Added to variances before they are divided by: patches of one colour have next to none in some directions.
WHITENING_EPSILON = 5e-4
# Patches that are held at a time, in double precision.
PATCHES = 2**19


def weights(layers: catalog.Layers, seed: int) -> List[np.ndarray]:
    """float32 arrays: what a ReLU follows as He et al. 2015 (arXiv 1502.01852, section 2.2, backward case), with biases
    of 0, and so all convolutions, but those that start as the identity: what is left of these is uniform within
    1 / sqrt(inputs of an output), as PyTorch's `nn.Conv2d`. Fully connected layers that give the logits uniform within
    1 / sqrt(inputs), as PyTorch's `nn.Linear`. Networks for text as GPT-2 (Radford et al. 2019, section 2.3, and its
    published code): normal with 0.02, positions with 0.01, biases of 0; what is added to the residual path less by the
    root of the number of such additions.

    From NumPy's RandomState, whose stream is promised never to change (NEP 19).
    """
    random = np.random.RandomState(seed % 2**32)
    arrays: List[np.ndarray] = []
    in_order = list(catalog.flat(layers))
    additions = 2 * sum(isinstance(layer, catalog.TransformerBlock) for layer in in_order)
    for layer, following in itertools.zip_longest(in_order, in_order[1:]):
        if isinstance(layer, catalog.Convolution):
            shape = (layer.outputs, layer.inputs, layer.kernel, layer.kernel)
            if layer.identity:
                arrays.append(_identity(random, shape))
            else:
                arrays.append(_he(random, shape, layer.outputs * layer.kernel**2))
            if layer.bias:
                arrays.append(np.zeros(layer.outputs, np.float32))
        elif isinstance(layer, catalog.BatchNorm):
            if layer.scale:
                arrays.append(np.full(layer.channels, 0.0 if layer.zero_scale else 1.0))
            arrays.append(np.zeros(layer.channels))
        elif isinstance(layer, catalog.Whitening):
            arrays.append(np.zeros(layer.outputs))
        elif isinstance(layer, catalog.Linear) and isinstance(following, catalog.ReLU):
            arrays.append(_he(random, (layer.outputs, layer.inputs), layer.outputs))
            arrays.append(np.zeros(layer.outputs, np.float32))
        elif isinstance(layer, catalog.Linear):
            bound = 1 / math.sqrt(layer.inputs)
            arrays += [
                random.uniform(-bound, bound, (layer.outputs, layer.inputs)),
                random.uniform(-bound, bound, layer.outputs),
            ]
        elif isinstance(layer, catalog.Embedding):
            arrays.append(_normal(random, (layer.vocabulary, layer.width), 0.02))
            arrays.append(_normal(random, (layer.context, layer.width), 0.01))
        elif isinstance(layer, catalog.LayerNorm):
            arrays += _layer_norm(layer.width)
        elif isinstance(layer, catalog.TransformerBlock):
            arrays += _block(random, layer.width, 0.02 / math.sqrt(additions))
        elif isinstance(layer, catalog.Projection):
            arrays.append(_normal(random, (layer.outputs, layer.inputs), 0.02))
    return [array.astype(np.float32, copy=False) for array in arrays]


def whitening(layer: catalog.Whitening, images: np.ndarray, mean: Sequence[float], std: Sequence[float]) -> np.ndarray:
    """The kernel, float32 [outputs, inputs, height, width], from images uint8 [n, H, W, C]; mean, std: per channel, of
    pixels scaled to 0..1, by which the network's inputs are normalised.

    The sums over the patches are exact, whatever adds them up in whatever order, and each component has a sign by rule:
    so the kernel depends on the images alone.
    """
    count, height, width, channels = images.shape
    kernel = layer.kernel
    assert channels == layer.inputs, (channels, layer)
    size = channels * kernel**2
    per_image = (height - kernel + 1) * (width - kernel + 1)
    total, products = np.zeros(size), np.zeros((size, size))
    # Whole numbers in double precision, of which those below 2^53 are exact.
    assert count * per_image * 255**2 < 2**53, images.shape
    step = max(1, PATCHES // per_image)
    for start in range(0, count, step):
        pixels = images[start : start + step].astype(np.float64)
        windows = [
            pixels[:, y : y + height - kernel + 1, x : x + width - kernel + 1, channel].reshape(-1)
            for channel in range(channels)
            for y in range(kernel)
            for x in range(kernel)
        ]
        patches = np.stack(windows)
        total += patches.sum(axis=1)
        products += patches @ patches.T
    patches_seen = count * per_image
    deviation = np.repeat(255 * np.asarray(std, np.float64), kernel**2)
    covariance = (products - np.outer(total, total) / patches_seen) / patches_seen / np.outer(deviation, deviation)
    variances, components = np.linalg.eigh(covariance)
    components = components.T[::-1]  # the largest variance first
    largest = np.abs(components).round(6).argmax(axis=1)  # rounded: of equal ones the first
    components = components * np.sign(components[np.arange(size), largest])[:, None]
    half = components / np.sqrt(variances[::-1, None] + WHITENING_EPSILON)
    filters = np.concatenate([half, -half]).reshape(layer.outputs, channels, kernel, kernel)
    return np.ascontiguousarray(filters, np.float32)


def _identity(random: np.random.RandomState, shape: Tuple[int, ...]) -> np.ndarray:
    """The first outputs give the inputs, one each, as they are."""
    outputs, inputs, side, _ = shape
    bound = 1 / math.sqrt(inputs * side**2)
    array = random.uniform(-bound, bound, shape)
    same = np.arange(min(outputs, inputs))
    array[same] = 0.0
    array[same, same, side // 2, side // 2] = 1.0
    return array


def _block(random: np.random.RandomState, width: int, residual: float) -> List[np.ndarray]:
    """residual: standard deviation of the two matrices whose products are added to what the block was given."""
    arrays = _layer_norm(width)
    for spread in (0.02, 0.02, 0.02, residual):  # query, key, value, project
        arrays += [_normal(random, (width, width), spread), np.zeros(width, np.float32)]
    arrays += _layer_norm(width)
    arrays += [_normal(random, (4 * width, width), 0.02), np.zeros(4 * width, np.float32)]
    arrays += [_normal(random, (width, 4 * width), residual), np.zeros(width, np.float32)]
    return arrays


def _layer_norm(width: int) -> List[np.ndarray]:
    return [np.ones(width, np.float32), np.zeros(width, np.float32)]


def _he(random: np.random.RandomState, shape: Tuple[int, ...], outputs: int) -> np.ndarray:
    return _normal(random, shape, math.sqrt(2 / outputs))


def _normal(random: np.random.RandomState, shape: Tuple[int, ...], deviation: float) -> np.ndarray:
    # At once in single precision: the largest matrices have 10^8 elements.
    return (random.standard_normal(shape) * deviation).astype(np.float32)
