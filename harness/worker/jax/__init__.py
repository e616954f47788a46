"""JAX's adapter (adapter.py) and its strategies (strategies.py)."""

from harness.worker.jax.adapter import Adapter, build, gpus, versions

__all__ = ["Adapter", "build", "gpus", "versions"]
