"""The strategies that PyTorch offers, each in the file of its name: how the ranks are joined, and how what they learn
becomes one model.

To add one: write a class of the form of `base.Strategy`, name it in STRATEGIES, add conf/strategy/<name>.yaml, its
options to harness/config/schema.py, and its name to `strategies` in conf/framework/pytorch.yaml.
"""

from __future__ import annotations

import importlib
from typing import Dict, Type

from harness.worker.pytorch.strategies.base import Strategy

# File and class. Imported only when it is asked for: what some of them need takes longer to load than torch itself.
STRATEGIES: Dict[str, str] = {
    "plain": "base.Plain",
    "allreduce": "allreduce.Allreduce",
    "hierarchical": "hierarchical.Hierarchical",
    "hybrid": "hybrid.Hybrid",
    "zero1": "zero1.Zero1",
    "fsdp": "fsdp.Fsdp",
    "local_sgd": "local_sgd.LocalSgd",
    "pipeline": "pipeline.Pipeline",
    "tensor": "tensor.Tensor",
    "horovod": "horovod.Horovod",
    "mpi": "mpi.Mpi",
    "ps_sync": "parameter_servers.PsSync",
    "ps_async": "parameter_servers.PsAsync",
    "ps_mixed": "parameter_servers.PsMixed",
    "ssp": "parameter_servers.Ssp",
}


def strategy(name: str) -> Type[Strategy]:
    module, _, of = STRATEGIES[name].partition(".")
    found: Type[Strategy] = getattr(importlib.import_module(f"{__name__}.{module}"), of)
    return found
