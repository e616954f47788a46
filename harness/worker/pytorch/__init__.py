"""PyTorch's adapter: `adapter.py` gives the loop its verbs, `strategies.py` has one function per strategy."""

from harness.worker.pytorch.adapter import Adapter, gpus, versions
from harness.worker.pytorch.device import build
from harness.worker.pytorch.inputs import PIPELINES

__all__ = ["PIPELINES", "Adapter", "build", "gpus", "versions"]
