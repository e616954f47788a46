"""Initial weights, generated from the seed so that they are identical in every framework.

A network's arrays come in the order of `catalog.flat` and in PyTorch's layout. Convolution: kernel [outputs, inputs,
height, width], then bias [outputs] if it has one. BatchNorm: scale [channels] if it has one, then shift [channels].
Whitening: bias [outputs] only, since its kernel is not trained. Fully connected: matrix [outputs, inputs], bias
[outputs]. Embedding: token vectors [vocabulary, width], position vectors [context, width]. LayerNorm: scale and shift
[width]. Each framework's builder (`models/<framework>.py`) converts from and to its own layout.
"""

from __future__ import annotations

import itertools
import math
from typing import List, Sequence, Tuple

import numpy as np

from models import catalog

# Number of leading training images from which a whitening layer is computed.
WHITENING_IMAGES = 5000
# Added to variances before dividing: some directions of single-coloured patches have almost none.
WHITENING_EPSILON = 5e-4
# Patches held at a time in double precision.
PATCHES = 2**19


def weights(layers: catalog.Layers, seed: int) -> List[np.ndarray]:
    """Generate the initial weights as float32 arrays.

    Layers followed by a ReLU, and convolutions in general: He et al. 2015 (arXiv 1502.01852, section 2.2, backward
    case), biases 0. Convolutions that start as the identity: remaining outputs uniform within 1 / sqrt(fan-in), as
    PyTorch's `nn.Conv2d`. Output layers: uniform within 1 / sqrt(inputs), as PyTorch's `nn.Linear`. Text networks as
    GPT-2 (Radford et al. 2019, section 2.3, and its published code): normal with standard deviation 0.02, positions
    0.01, biases 0; layers that add to the residual stream are scaled by 1 / sqrt(number of such additions).

    Uses NumPy's RandomState, whose stream is guaranteed never to change (NEP 19).
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
    """Compute a whitening kernel from training images.

    The sums over patches are exact in any order and each component's sign is fixed by a rule, so the kernel depends on
    the images alone.

    Args:
        layer: the whitening layer.
        images: uint8 [n, height, width, channels].
        mean, std: per channel, the normalisation of the network's inputs, for pixels scaled to 0..1.

    Returns:
        float32 [outputs, inputs, height, width].
    """
    count, height, width, channels = images.shape
    kernel = layer.kernel
    assert channels == layer.inputs, (channels, layer)
    size = channels * kernel**2
    per_image = (height - kernel + 1) * (width - kernel + 1)
    total, products = np.zeros(size), np.zeros((size, size))
    # Integers in double precision, exact below 2^53.
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
    components = components.T[::-1]  # largest variance first
    largest = np.abs(components).round(6).argmax(axis=1)  # rounded so that ties resolve to the first
    components = components * np.sign(components[np.arange(size), largest])[:, None]
    half = components / np.sqrt(variances[::-1, None] + WHITENING_EPSILON)
    filters = np.concatenate([half, -half]).reshape(layer.outputs, channels, kernel, kernel)
    return np.ascontiguousarray(filters, np.float32)


def _identity(random: np.random.RandomState, shape: Tuple[int, ...]) -> np.ndarray:
    """The first outputs copy the inputs, one each."""
    outputs, inputs, side, _ = shape
    bound = 1 / math.sqrt(inputs * side**2)
    array = random.uniform(-bound, bound, shape)
    same = np.arange(min(outputs, inputs))
    array[same] = 0.0
    array[same, same, side // 2, side // 2] = 1.0
    return array


def _block(random: np.random.RandomState, width: int, residual: float) -> List[np.ndarray]:
    """residual: standard deviation of the two matrices that add to the residual stream."""
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
    # Generated in single precision directly: the largest matrices have 10^8 elements.
    return (random.standard_normal(shape) * deviation).astype(np.float32)
