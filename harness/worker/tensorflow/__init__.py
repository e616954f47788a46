"""TensorFlow's adapter (adapter.py) and its strategies (strategies.py); replica.py is shared with Keras's adapter."""

import os

# Before importing TensorFlow: log only warnings and errors.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")

from harness.worker.tensorflow.adapter import Adapter
from harness.worker.tensorflow.inputs import PIPELINES
from harness.worker.tensorflow.machine import build, gpus, versions

__all__ = ["PIPELINES", "Adapter", "build", "gpus", "versions"]
