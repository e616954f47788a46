"""MXNet's adapter (adapter.py) and its strategies (strategies.py)."""

from harness.worker.mxnet.adapter import Adapter
from harness.worker.mxnet.inputs import PIPELINES
from harness.worker.mxnet.machine import build, gpus, versions

__all__ = ["PIPELINES", "Adapter", "build", "gpus", "versions"]
