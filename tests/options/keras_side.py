"""The options matrix: the reference for Keras is that of TensorFlow, which contains Keras."""

from options.tensorflow_side import DEFECTS, ONCE, reference

__all__ = ["DEFECTS", "ONCE", "reference"]
