"""The strategies that PyTorch offers, each in the file of its name: how the ranks are joined, and how what they learn
becomes one model.

To add one: write a class of the form of `base.Strategy`, put it into STRATEGIES, add conf/strategy/<name>.yaml, its
options to harness/schema.py, and its name to `strategies` in conf/framework/pytorch.yaml.
"""

from typing import Dict, Type

from harness.worker.pytorch.strategies.allreduce import Allreduce
from harness.worker.pytorch.strategies.base import Plain, Strategy
from harness.worker.pytorch.strategies.fsdp import Fsdp
from harness.worker.pytorch.strategies.hierarchical import Hierarchical
from harness.worker.pytorch.strategies.horovod import Horovod
from harness.worker.pytorch.strategies.hybrid import Hybrid
from harness.worker.pytorch.strategies.local_sgd import LocalSgd
from harness.worker.pytorch.strategies.mpi import Mpi
from harness.worker.pytorch.strategies.parameter_servers import PsAsync, PsMixed, PsSync, Ssp
from harness.worker.pytorch.strategies.zero1 import Zero1

STRATEGIES: Dict[str, Type[Strategy]] = {
    "plain": Plain,
    "allreduce": Allreduce,
    "hierarchical": Hierarchical,
    "hybrid": Hybrid,
    "zero1": Zero1,
    "fsdp": Fsdp,
    "local_sgd": LocalSgd,
    "horovod": Horovod,
    "mpi": Mpi,
    "ps_sync": PsSync,
    "ps_async": PsAsync,
    "ps_mixed": PsMixed,
    "ssp": Ssp,
}
