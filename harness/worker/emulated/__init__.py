"""A worker whose costs are known, because it waits instead of computing: what the analysis is held to.

`waiting.py` waits until a moment, and says how exactly; `link.py` carries messages, and may be slower than the real
link; `adapter.py` gives the loop its verbs.
"""

from harness.worker.emulated.adapter import Adapter, gpus, versions

__all__ = ["Adapter", "gpus", "versions"]
