"""The weights that every framework starts from: made here, from the seed, so that they are the same in all of them.

A network's arrays come in one order, that of `catalog.flat`, and in one layout, PyTorch's: a convolution has its kernel
[outputs, inputs, height, width], and its bias [outputs] where it has one; BatchNorm its scale [channels] and its shift
[channels]; a fully connected layer its matrix [outputs, inputs] and its bias [outputs]; an embedding the vectors of the
tokens [vocabulary, width] and of the positions [context, width]; LayerNorm its scale and its shift [width]. A
framework's builder (`models/<framework>.py`) takes them from there to its own layout, and back.
"""

from __future__ import annotations

import itertools
import math
from typing import List, Tuple

import numpy as np

from models import catalog


def weights(layers: catalog.Layers, seed: int) -> List[np.ndarray]:
    """float32 arrays: what a ReLU follows as He et al. 2015 (arXiv 1502.01852, section 2.2, backward case), with biases
    of 0, and so all convolutions; fully connected layers that give the logits uniform within 1 / sqrt(inputs), as
    PyTorch's `nn.Linear`. Networks for text as GPT-2 (Radford et al. 2019, section 2.3, and its published code): normal
    with 0.02, positions with 0.01, biases of 0; what is added to the residual path less by the root of the number of
    such additions.

    From NumPy's RandomState, whose stream is promised never to change (NEP 19).
    """
    random = np.random.RandomState(seed % 2**32)
    arrays: List[np.ndarray] = []
    in_order = list(catalog.flat(layers))
    additions = 2 * sum(isinstance(layer, catalog.TransformerBlock) for layer in in_order)
    for layer, following in itertools.zip_longest(in_order, in_order[1:]):
        if isinstance(layer, catalog.Convolution):
            shape = (layer.outputs, layer.inputs, layer.kernel, layer.kernel)
            arrays.append(_he(random, shape, layer.outputs * layer.kernel**2))
            if layer.bias:
                arrays.append(np.zeros(layer.outputs, np.float32))
        elif isinstance(layer, catalog.BatchNorm):
            arrays += [np.full(layer.channels, 0.0 if layer.zero_scale else 1.0), np.zeros(layer.channels)]
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
