"""The weights that every framework starts from: made here, from the seed, so that they are the same in all of them.

A network's arrays come in one order, that of `catalog.flat`, and in one layout, PyTorch's: a convolution has its kernel
[outputs, inputs, height, width]; BatchNorm its scale [channels] and its shift [channels]; a fully connected layer its
matrix [outputs, inputs] and its bias [outputs]. A framework's builder (`models/<framework>.py`) takes them from there
to its own layout, and back.
"""

from __future__ import annotations

import math
from typing import List

import numpy as np

from models import catalog


def weights(layers: catalog.Layers, seed: int) -> List[np.ndarray]:
    """float32 arrays: convolutions as He et al. 2015 (arXiv 1502.01852, section 2.2, backward case), fully connected
    layers uniform within 1 / sqrt(inputs), as PyTorch's `nn.Linear`.

    From NumPy's RandomState, whose stream is promised never to change (NEP 19).
    """
    random = np.random.RandomState(seed % 2**32)
    arrays: List[np.ndarray] = []
    for layer in catalog.flat(layers):
        if isinstance(layer, catalog.Convolution):
            shape = (layer.outputs, layer.inputs, layer.kernel, layer.kernel)
            arrays.append(random.standard_normal(shape) * math.sqrt(2 / (layer.outputs * layer.kernel**2)))
        elif isinstance(layer, catalog.BatchNorm):
            arrays += [np.full(layer.channels, 0.0 if layer.zero_scale else 1.0), np.zeros(layer.channels)]
        elif isinstance(layer, catalog.Linear):
            bound = 1 / math.sqrt(layer.inputs)
            arrays += [
                random.uniform(-bound, bound, (layer.outputs, layer.inputs)),
                random.uniform(-bound, bound, layer.outputs),
            ]
    return [array.astype(np.float32) for array in arrays]
