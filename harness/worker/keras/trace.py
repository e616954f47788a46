"""Keras is TensorFlow's."""

from harness.worker.tensorflow.trace import Profiler

__all__ = ["Profiler"]
