"""PyTorch's strategies, one file each: how ranks are joined and how their work becomes one model.

`local_sgd` is the class `LocalSgd` in local_sgd.py. To add a strategy, write a subclass of `base.Strategy`, a row in
harness/core/strategies.py and conf/strategy/<name>.yaml; its options, if any, are a class in harness/config/schema.py.
"""

from __future__ import annotations

import importlib
from typing import Type

from harness.core.strategies import PLAIN, info
from harness.worker.pytorch.strategies.base import Strategy


def strategy(name: str) -> Type[Strategy]:
    """Import and return the strategy's class; lazily, as some take longer to load than torch itself."""
    module = "base" if name == PLAIN else "parameter_servers" if info(name).servers else name
    class_name = "".join(word.capitalize() for word in name.split("_"))
    found: Type[Strategy] = getattr(importlib.import_module(f"{__name__}.{module}"), class_name)
    return found
