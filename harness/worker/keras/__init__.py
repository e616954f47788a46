"""Keras's adapter: a step is what `fit` does in one; all else is shared with harness/worker/tensorflow."""

import os

# As harness/worker/tensorflow has it.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")

from harness.worker.keras.adapter import Adapter
from harness.worker.tensorflow import PIPELINES, build, gpus, versions

__all__ = ["PIPELINES", "Adapter", "build", "gpus", "versions"]
