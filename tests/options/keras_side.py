"""The options matrix: the reference for Keras is that for TensorFlow, of which it is part."""

from options.tensorflow_side import DEFECTS, ONCE, reference

__all__ = ["DEFECTS", "ONCE", "reference"]
