"""Builds a network of the catalogue as pure JAX functions on arrays.

Images are [n, height, width, channels] and kernels [height, width, inputs, outputs]: XLA's convolutions take this
layout on a CPU without transposing, and may choose another on a GPU.
"""

from __future__ import annotations

from typing import Any, Iterator, List, Sequence, Tuple

import jax
import jax.numpy as jnp
import numpy as np

from models import catalog, initial

Arrays = List[Any]
# Running mean and variance of a BatchNorm.
Statistics = List[Tuple[Any, Any]]


def build(layers: catalog.Layers, seed: int) -> Tuple[Arrays, Statistics]:
    """Return (trainable parameters in `models.initial` order, statistics in `catalog.flat` order) as NumPy arrays."""
    channels = [layer.channels for layer in catalog.flat(layers) if isinstance(layer, catalog.BatchNorm)]
    fresh = [(np.zeros(n, np.float32), np.ones(n, np.float32)) for n in channels]
    return to_layout(initial.weights(layers, seed)), fresh


def to_layout(arrays: Sequence[np.ndarray]) -> List[np.ndarray]:
    """Convert from the layout of `models.initial` to this module's."""
    return [np.ascontiguousarray(a.transpose(2, 3, 1, 0)) if a.ndim == 4 else a for a in arrays]


def from_layout(arrays: Sequence[Any]) -> List[np.ndarray]:
    """Inverse of `to_layout`."""
    return [np.asarray(a).transpose(3, 2, 0, 1) if a.ndim == 4 else np.asarray(a) for a in arrays]


def forward(
    layers: catalog.Layers, params: Arrays, statistics: Statistics, x: Any, train: bool, compute_type: Any = jnp.float32
) -> Tuple[Any, Statistics]:
    """Run the network on float [n, height, width, channels].

    Args:
        train: BatchNorm uses the batch's statistics and updates the running ones.
        compute_type: type of convolutions, matrix products and activations. Parameters and BatchNorm use float32.

    Returns:
        float32 logits [n, classes] and the new running statistics.
    """
    network = _Network(iter(params), iter(statistics), train, compute_type)
    logits = network.apply(layers, x.astype(compute_type))
    return logits.astype(jnp.float32), network.new_statistics


class _Network:
    """One pass over the layers, consuming parameters and statistics in `catalog.flat` order."""

    def __init__(self, params: Iterator[Any], statistics: Iterator[Any], train: bool, compute_type: Any) -> None:
        self.params, self.statistics, self.train, self.compute_type = params, statistics, train, compute_type
        self.new_statistics: Statistics = []

    def apply(self, layers: catalog.Layers, x: Any) -> Any:
        for layer in layers:
            x = self.layer(layer, x)
        return x

    def layer(self, layer: catalog.Layer, x: Any) -> Any:
        if isinstance(layer, catalog.Convolution):
            return self.convolution(layer, x)
        if isinstance(layer, catalog.BatchNorm):
            return self.batch_norm(x)
        if isinstance(layer, catalog.ReLU):
            return jax.nn.relu(x)
        if isinstance(layer, catalog.MaxPool):
            return _max_pool(layer, x)
        if isinstance(layer, catalog.GlobalAveragePool):
            return x.mean((1, 2))
        if isinstance(layer, catalog.Flatten):
            return x.transpose(0, 3, 1, 2).reshape(len(x), -1)
        if isinstance(layer, catalog.Linear):
            return self.biased(x @ self.parameter().T)
        if isinstance(layer, catalog.Scale):
            return x * layer.factor
        if isinstance(layer, catalog.PadShortcut):
            return jnp.pad(x[:, :: layer.stride, :: layer.stride], ((0, 0),) * 3 + ((0, layer.outputs - layer.inputs),))
        if isinstance(layer, catalog.Residual):
            body = self.apply(layer.body, x)
            return jax.nn.relu(body + self.apply(layer.shortcut, x))
        raise AssertionError(f"models/jax.py has nothing for {layer!r}")

    def parameter(self) -> Any:
        return next(self.params).astype(self.compute_type)

    def convolution(self, layer: catalog.Convolution, x: Any) -> Any:
        y = jax.lax.conv_general_dilated(
            x,
            self.parameter(),
            window_strides=(layer.stride, layer.stride),
            padding=((layer.padding, layer.padding),) * 2,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        return self.biased(y) if layer.bias else y

    def biased(self, y: Any) -> Any:
        """Add the bias in float32: its gradient sums over all pixels, for which 16 bits are too few."""
        return (y.astype(jnp.float32) + next(self.params)).astype(self.compute_type)

    def batch_norm(self, x: Any) -> Any:
        """As in PyTorch: normalises with the biased variance and tracks the unbiased one."""
        scale, shift = next(self.params), next(self.params)
        running_mean, running_variance = next(self.statistics)
        mean, variance = running_mean, running_variance
        if self.train:
            wide = x.astype(jnp.float32)
            mean, variance = wide.mean((0, 1, 2)), wide.var((0, 1, 2))
            count = x.size // x.shape[-1]
            new = catalog.BATCHNORM_MOMENTUM
            self.new_statistics.append(
                (
                    (1 - new) * running_mean + new * mean,
                    (1 - new) * running_variance + new * variance * (count / (count - 1)),
                )
            )
        factor = scale * jax.lax.rsqrt(variance + catalog.BATCHNORM_EPSILON)
        return ((x.astype(jnp.float32) - mean) * factor + shift).astype(x.dtype)


def _max_pool(layer: catalog.MaxPool, x: Any) -> Any:
    return jax.lax.reduce_window(
        x,
        -np.inf,  # a constant: otherwise JAX does not recognise a maximum and has no gradient
        jax.lax.max,
        window_dimensions=(1, layer.kernel, layer.kernel, 1),
        window_strides=(1, layer.stride, layer.stride, 1),
        padding=((0, 0), (layer.padding, layer.padding), (layer.padding, layer.padding), (0, 0)),
    )
