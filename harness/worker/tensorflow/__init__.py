"""TensorFlow's adapter: `adapter.py` gives the loop its verbs, `strategies.py` has one class per strategy.

`replica.py` is what it shares with Keras's adapter.
"""

import os

# Before TensorFlow is there: only warnings and errors.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")

from harness.worker.tensorflow.adapter import Adapter
from harness.worker.tensorflow.inputs import PIPELINES
from harness.worker.tensorflow.machine import build, gpus, versions

__all__ = ["PIPELINES", "Adapter", "build", "gpus", "versions"]
