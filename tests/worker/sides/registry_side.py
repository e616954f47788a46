"""The halves of tests/harness/core/test_strategies.py that run in the frameworks' environments."""

from __future__ import annotations

from typing import List, Mapping


def classes(framework: str, offered: List[str]) -> List[str]:
    """Return which of the strategies the adapter has a class for, and its additional ones."""
    if framework == "pytorch":
        from harness.worker.pytorch.strategies import strategy

        return [name for name in offered if strategy(name)]
    table = _table(framework)
    return [name for name in offered if name in table] + sorted(set(table) - set(offered))


def _table(framework: str) -> Mapping[str, object]:
    if framework in ("tensorflow", "keras"):
        from harness.worker.tensorflow import replica

        return replica.STRATEGIES
    if framework == "mxnet":
        from harness.worker.mxnet import adapter as mxnet_adapter

        return mxnet_adapter.STRATEGIES
    if framework == "jax":
        from harness.worker.jax import adapter as jax_adapter

        return jax_adapter.STRATEGIES
    from harness.worker.emulated import link

    return link.CARRIERS
