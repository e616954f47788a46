"""PyTorch's adapter: `adapter.py` gives the loop its verbs, `strategies.py` has one function per strategy."""

from harness.worker.pytorch.adapter import Adapter, gpus, versions

__all__ = ["Adapter", "gpus", "versions"]
