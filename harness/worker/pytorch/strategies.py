"""One function per strategy that PyTorch offers: it wraps the network so that a step does the strategy's work.

To add one: write `name(network, spec, device) -> Wrapped`, put it into STRATEGIES, add conf/strategy/<name>.yaml, its
options to harness/schema.py, and its name to `strategies` in conf/framework/pytorch.yaml.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, ContextManager, Dict

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from harness.spec import RunSpec


@dataclass
class Wrapped:
    """network: called as the plain one. without_sync: a context in which backward exchanges no gradients."""

    network: nn.Module
    without_sync: Callable[[], ContextManager[Any]]


def allreduce(network: nn.Module, spec: RunSpec, device: torch.device) -> Wrapped:
    """Every rank has the whole network; gradients are averaged in buckets while backward goes on
    (Li et al. 2020, PyTorch Distributed, VLDB 13(12))."""
    wrapped = DistributedDataParallel(
        network,
        device_ids=[device.index] if device.type == "cuda" else None,
        bucket_cap_mb=spec.strategy_options["bucket_mb"],
        gradient_as_bucket_view=True,
    )
    return Wrapped(wrapped, wrapped.no_sync)


STRATEGIES: Dict[str, Callable[[nn.Module, RunSpec, torch.device], Wrapped]] = {"allreduce": allreduce}
