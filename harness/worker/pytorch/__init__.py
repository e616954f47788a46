"""PyTorch's adapter (adapter.py) and its strategies (strategies/)."""

from harness.worker.pytorch.adapter import Adapter, gpus, versions
from harness.worker.pytorch.device import build
from harness.worker.pytorch.inputs import PIPELINES

__all__ = ["PIPELINES", "Adapter", "build", "gpus", "versions"]
