"""MXNet's adapter: `adapter.py` gives the loop its verbs, `strategies.py` has one class per strategy."""

from harness.worker.mxnet.adapter import Adapter
from harness.worker.mxnet.inputs import PIPELINES
from harness.worker.mxnet.machine import build, gpus, versions

__all__ = ["PIPELINES", "Adapter", "build", "gpus", "versions"]
