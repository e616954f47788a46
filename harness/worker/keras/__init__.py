"""Keras's adapter: a step runs what `fit` does for a batch; the rest is shared with harness/worker/tensorflow."""

import os

# As in harness/worker/tensorflow.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")

from harness.worker.keras.adapter import Adapter
from harness.worker.tensorflow import PIPELINES, build, gpus, versions

__all__ = ["PIPELINES", "Adapter", "build", "gpus", "versions"]
