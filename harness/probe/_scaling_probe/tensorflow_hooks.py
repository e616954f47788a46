"""Remembers TensorFlow's distribution strategy, which nothing else shows from outside of its scope."""

from __future__ import annotations

import functools
from typing import Any

# The one that was made last.
strategies: list[Any] = []


def _hook(module: Any) -> None:
    original = module.StrategyBase.__init__

    @functools.wraps(original)
    def __init__(strategy: Any, *args: Any, **kwargs: Any) -> None:
        original(strategy, *args, **kwargs)
        if not type(strategy).__name__.startswith("_Default"):
            strategies[:] = [strategy]

    module.StrategyBase.__init__ = __init__


def replicas() -> tuple[int, int] | None:
    """Return (replicas of all processes, replicas of this one); None without a strategy."""
    if not strategies:
        return None
    (strategy,) = strategies
    return strategy.num_replicas_in_sync, max(1, len(strategy.extended.worker_devices))


MODULES = {"tensorflow.python.distribute.distribute_lib": _hook}
