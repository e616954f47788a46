"""Keras uses TensorFlow's profiler."""

from harness.worker.tensorflow.trace import Profiler

__all__ = ["Profiler"]
