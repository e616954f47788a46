"""ZeRO stage 1: each rank holds the optimiser state of its share of the parameters only."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterator, List, Mapping, Optional, Type

from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import Optimizer

from harness.worker.pytorch.strategies.allreduce import Allreduce, Reduction
from harness.worker.pytorch.strategies.base import Stateful


class Zero1(Allreduce):
    """Average gradients as `allreduce`; each rank updates its share of the parameters and broadcasts it (Rajbhandari et
    al. 2020, ZeRO, SC20)."""

    only_buckets = False

    def reduction(self) -> Optional[Reduction]:
        return None

    def optimizer(self, parameters: List[nn.Parameter], kind: Type[Optimizer], settings: Dict[str, Any]) -> Optimizer:
        self.sharded = Sharded(parameters, kind, **settings)
        return self.sharded

    @contextlib.contextmanager
    def sync_gradients(self, synchronise: bool) -> Iterator[None]:
        self.sharded.synchronise = synchronise
        with super().sync_gradients(synchronise):
            yield

    def replicated_state(self, network: nn.Module, optimizer: Optimizer) -> Mapping[str, Stateful]:
        return {"network": network}

    def rank_state(self, network: nn.Module, optimizer: Optimizer) -> Mapping[str, Stateful]:
        return {"share": self.sharded.optim}


class Sharded(ZeroRedundancyOptimizer):
    """synchronise: end a step by exchanging the updated parameters."""

    synchronise = True

    def step(self, closure: Any = None, **kwargs: Any) -> Optional[float]:
        if not self.synchronise:
            self.optim.step()
            return None
        return super().step(closure, **kwargs)
