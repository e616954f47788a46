"""The packages that a run of the catalogue imports in its environment. Standard library only."""

from __future__ import annotations

from typing import Optional, Tuple

from harness.core import gpu_types
from harness.core.strategies import info

# By framework; besides it, NumPy in each.
PACKAGES = {"pytorch": "torch", "tensorflow": "tensorflow", "keras": "tensorflow", "mxnet": "mxnet", "jax": "jax"}


def needed(framework: str, strategy: Optional[str] = None) -> Tuple[str, ...]:
    """Return what a rank imports: NumPy, the framework, and what the strategy, if given, needs besides them."""
    carrier = info(strategy).package if strategy else None
    return tuple(filter(None, ("numpy", PACKAGES.get(framework), carrier)))


def completion(environment: str) -> str:
    """Return what to do about an environment that lacks a package."""
    builder = gpu_types.builder(environment)
    how = f"rebuild it: `{builder}`" if builder else "install it there"
    return f"{how}, or set framework.environment to an interpreter with it"
