"""JAX's adapter: `adapter.py` gives the loop its verbs, `strategies.py` has one class per strategy."""

from harness.worker.jax.adapter import Adapter, gpus, versions

__all__ = ["Adapter", "gpus", "versions"]
