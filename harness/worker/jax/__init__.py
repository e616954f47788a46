"""JAX's adapter: `adapter.py` gives the loop its verbs, `strategies.py` has one class per strategy."""

from harness.worker.jax.adapter import Adapter, build, gpus, versions

__all__ = ["Adapter", "build", "gpus", "versions"]
