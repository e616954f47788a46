"""The strategies that PyTorch offers, each in the file of its name: how the ranks are joined, and how what they learn
becomes one model.

A strategy is found by its name: `local_sgd` is the class `LocalSgd` of local_sgd.py. To add one: write a class of the
form of `base.Strategy`, add its row to harness/core/strategies.py, and conf/strategy/<name>.yaml. Options of its own
have a class in harness/config/schema.py.
"""

from __future__ import annotations

import importlib
from typing import Type

from harness.core.strategies import PLAIN, info
from harness.worker.pytorch.strategies.base import Strategy


def strategy(name: str) -> Type[Strategy]:
    """Imported only when it is asked for: what some of them need takes longer to load than torch itself."""
    module = "base" if name == PLAIN else "parameter_servers" if info(name).servers else name
    of = "".join(word.capitalize() for word in name.split("_"))
    found: Type[Strategy] = getattr(importlib.import_module(f"{__name__}.{module}"), of)
    return found
