"""A worker with known costs, because it waits instead of computing: the reference for testing the analysis.

waiting.py waits until a moment and reports its accuracy; link.py carries messages, optionally over an emulated slower
link; adapter.py is the adapter.
"""

from harness.worker.emulated.adapter import Adapter, gpus, versions

__all__ = ["Adapter", "gpus", "versions"]
