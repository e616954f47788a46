"""Builds a network of the catalogue as a `tf.keras.Model`, for TensorFlow and Keras."""

from __future__ import annotations

from typing import List

import numpy as np
import tensorflow as tf

from models import catalog, initial

LOWEST = {kind: kind.min for kind in (tf.float32, tf.bfloat16, tf.float16)}


def build(layers: catalog.Layers, seed: int, channels: int, image_size: int) -> tf.keras.Model:
    """Build a network with the initial weights of `models.initial`.

    float [n, height, width, channels] -> logits float32 [n, classes]. Computes in Keras's global policy.
    """
    network = _Builder().network(layers, (image_size, image_size, channels))
    for variable, array in zip(parameters(network), initial.weights(layers, seed)):
        variable.assign(to_own_layout(array))
    return network


def parameters(network: tf.keras.Model) -> List[tf.Variable]:
    """Parameters in the order of `models.initial`, which differs from `network.trainable_variables`."""
    return [variable for layer in _in_order(network) for variable in layer.trainable_variables]


def statistics(network: tf.keras.Model) -> List[tf.Variable]:
    """BatchNorm's running means and variances."""
    return [variable for layer in _in_order(network) for variable in layer.non_trainable_variables]


def to_own_layout(array: np.ndarray) -> np.ndarray:
    """Convert from the layout of `models.initial`: kernels to [height, width, inputs, outputs], matrices to [inputs,
    outputs]."""
    return np.ascontiguousarray(array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T)


def from_own_layout(array: np.ndarray) -> np.ndarray:
    """Convert to the layout of `models.initial`."""
    return np.ascontiguousarray(array.transpose(3, 2, 0, 1) if array.ndim == 4 else array.T)


class PadShortcut(tf.keras.layers.Layer):
    def __init__(self, layer: catalog.PadShortcut) -> None:
        super().__init__()
        self.stride = layer.stride
        self.new_channels = layer.outputs - layer.inputs

    def call(self, x: tf.Tensor) -> tf.Tensor:
        kept = x[:, :: self.stride, :: self.stride, :]
        return tf.pad(kept, [[0, 0], [0, 0], [0, 0], [0, self.new_channels]])


class Pad(tf.keras.layers.Layer):
    """Pads equally on all sides.

    TensorFlow's "same" padding is asymmetric for strides above 1, and its convolutions with explicit padding are many
    times slower on CPUs with bfloat16 or without oneDNN.
    """

    def __init__(self, pixels: int, lowest: bool = False) -> None:
        super().__init__()
        self.paddings = [[0, 0], [pixels, pixels], [pixels, pixels], [0, 0]]
        self.lowest = lowest

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return tf.pad(x, self.paddings, constant_values=LOWEST[x.dtype] if self.lowest else 0)


class _Builder:
    """Numbers the layers that have weights, because Keras reorders the layers of a graph."""

    def __init__(self) -> None:
        self.numbered = 0

    def network(self, layers: catalog.Layers, shape: tuple) -> tf.keras.Model:
        pixels = tf.keras.Input(shape)
        logits = self._sequence(layers, pixels)
        # Even if the layers compute in another type.
        return tf.keras.Model(pixels, tf.keras.layers.Activation("linear", dtype="float32")(logits))

    def _sequence(self, layers: catalog.Layers, x: tf.Tensor) -> tf.Tensor:
        for layer in layers:
            x = self._apply(layer, x)
        return x

    def _apply(self, layer: catalog.Layer, x: tf.Tensor) -> tf.Tensor:
        keras = tf.keras.layers
        if isinstance(layer, catalog.Convolution):
            same = layer.stride == 1 and 2 * layer.padding == layer.kernel - 1
            if layer.padding and not same:
                x = Pad(layer.padding)(x)
            options = {"use_bias": layer.bias, "kernel_initializer": "zeros", "name": self._name()}
            options["padding"] = "same" if same else "valid"
            return keras.Conv2D(layer.outputs, layer.kernel, layer.stride, **options)(x)
        if isinstance(layer, catalog.BatchNorm):
            # Keras uses TensorFlow's fused kernel, which raises this epsilon to 1.001e-5 for cuDNN.
            momentum = 1 - catalog.BATCHNORM_MOMENTUM
            return keras.BatchNormalization(epsilon=catalog.BATCHNORM_EPSILON, momentum=momentum, name=self._name())(x)
        if isinstance(layer, catalog.ReLU):
            return keras.ReLU()(x)
        if isinstance(layer, catalog.MaxPool):
            if layer.padding:
                x = Pad(layer.padding, lowest=True)(x)
            return keras.MaxPool2D(layer.kernel, layer.stride)(x)
        if isinstance(layer, catalog.GlobalAveragePool):
            return keras.GlobalAveragePooling2D()(x)
        if isinstance(layer, catalog.Flatten):
            return keras.Flatten()(keras.Permute((3, 1, 2))(x))
        if isinstance(layer, catalog.Linear):
            return keras.Dense(layer.outputs, kernel_initializer="zeros", name=self._name())(x)
        if isinstance(layer, catalog.Scale):
            return keras.Rescaling(layer.factor)(x)
        if isinstance(layer, catalog.PadShortcut):
            return PadShortcut(layer)(x)
        if isinstance(layer, catalog.Residual):
            branches = [self._sequence(layer.body, x), self._sequence(layer.shortcut, x)]
            return keras.ReLU()(keras.Add()(branches))
        raise AssertionError(f"models/tensorflow.py has no layer for {layer!r}")

    def _name(self) -> str:
        self.numbered += 1
        return f"weights_{self.numbered:04}"


def _in_order(network: tf.keras.Model) -> List[tf.keras.layers.Layer]:
    # Four-digit names sort numerically.
    return sorted((layer for layer in network.layers if layer.weights), key=lambda layer: str(layer.name))
