"""The interface between the PyTorch adapter and its strategies, and the plain single-rank strategy."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from typing import Any, ContextManager, Dict, List, Mapping, Optional, Protocol, Sequence, Tuple, Type

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.optim import Optimizer

from harness.core.rendezvous import Rendezvous
from harness.core.spec import RunSpec, Site
from harness.worker.distributed.process_group import destroy_process_group, init_process_group
from harness.worker.profiler_ranges import span


class Stateful(Protocol):
    """Part of a checkpoint."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> Any: ...


AUTOCAST = {"fp32": None, "tf32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(spec: RunSpec, device: torch.device) -> ContextManager[Any]:
    """Return the context for forward and loss in the run's precision."""
    number = AUTOCAST[spec.precision]
    if number is None:
        return contextlib.nullcontext()
    # Cached casts of weights would live in a CUDA graph's memory.
    return torch.autocast(device.type, number, cache_enabled=not spec.framework_options.get("cuda_graph", False))


def cross_entropy(outputs: torch.Tensor, labels: torch.Tensor, smoothing: float = 0.0) -> torch.Tensor:
    """Return the mean over predictions for [n, classes] and [n], or for text [n, tokens, vocabulary] and [n,
    tokens]."""
    return functional.cross_entropy(outputs.flatten(0, -2), labels.flatten(), label_smoothing=smoothing)


class Strategy(ABC):
    """Constructed as Strategy(spec, site, rendezvous, device); joins the other ranks.

    world_size: as the communication library sees it. communication: the name of that library.
    """

    world_size: int
    communication: str
    # Backward may replace the tensors in `.grad`; else it adds to them.
    new_gradients = True
    # A step can run without its communication.
    separable = True
    # A step can run with everything but the other ranks (`exchange_with_peers`).
    has_one_rank_step = False
    # PyTorch's profiler sees all messages of a step, and each step has the same.
    trace_has_parts = False

    def __init__(self, spec: RunSpec, site: Site, rendezvous: Rendezvous, device: torch.device) -> None:
        self.spec, self.device = spec, device
        self.messages: Dict[int, torch.Tensor] = {}
        # Versions of communication libraries other than PyTorch.
        self.carrier: Dict[str, str] = {}

    def to_device(self, network: nn.Module) -> nn.Module:
        """Move the network from the host to where `wrap` expects it."""
        return network.to(self.device)

    @abstractmethod
    def wrap(self, network: nn.Module) -> nn.Module:
        """Return the module to call in training."""

    def optimizer(self, parameters: List[nn.Parameter], kind: Type[Optimizer], settings: Dict[str, Any]) -> Optimizer:
        """Return what steps after `sync_gradients`: kind(parameters, **settings) or the strategy's own."""
        return kind(parameters, **settings)

    @abstractmethod
    def sync_gradients(self, synchronise: bool) -> ContextManager[Any]:
        """Return the context for forward and backward. Afterwards each `.grad` is the mean over the ranks, or the
        rank's own if not synchronised."""

    def forward_backward(
        self, network: nn.Module, scaler: Any, inputs: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        """Run forward and backward within `sync_gradients`; return the batch's mean loss if this rank knows it."""
        with span("forward"), autocast(self.spec, self.device):
            loss = cross_entropy(network(inputs), labels, self.spec.optimizer.label_smoothing)
        with span("backward"):
            scaler.scale(loss).backward()
        return loss.detach()

    def loss(self, learned: torch.Tensor) -> float:
        """Return the loss of this rank's batch from the last result of `forward_backward`; collective."""
        return float(learned.item())

    def logits(self, network: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        """Return the plain network's logits without gradients, equal on all ranks of a replica; collective in it."""
        outputs: torch.Tensor = network(inputs)
        return outputs

    def full_tensors(self, tensors: List[torch.Tensor]) -> List[torch.Tensor]:
        """Gather one tensor per parameter of this rank into those of all the network's parameters, in its order."""
        return tensors

    def gradient_bytes(self, parameters: List[nn.Parameter]) -> int:
        """Return what one rank contributes to an allreduce of all gradients; 0 if there is none."""
        return sum(p.numel() * p.element_size() for p in parameters)

    def exchange_with_peers(self, present: bool) -> None:
        """Exchange gradients with all ranks again, or only with this one; for strategies with `has_one_rank_step`."""
        raise NotImplementedError

    def after_step(self, steps: int, synchronise: bool) -> None:  # noqa: B027 optional hook
        """Called after the optimiser's step; `steps` includes it."""

    def evaluation(self) -> ContextManager[Any]:
        """Return a context in which the network has the weights to evaluate."""
        return contextlib.nullcontext()

    def means(self) -> None:  # noqa: B027 optional hook
        """Fetch the mean gradients of a synchronised step into `.grad` if servers averaged them; synchronous strategies
        only."""

    def updates(self) -> Optional[Dict[str, Any]]:
        """See `Adapter.updates`."""
        return None

    def servers_back(self) -> List[Dict[str, Any]]:
        """See `Adapter.servers_back`."""
        return []

    def replicated_state(self, network: nn.Module, optimizer: Optimizer) -> Mapping[str, Stateful]:
        """Return the state that is equal on all ranks, for the checkpoint."""
        return {"network": network, "optimizer": optimizer}

    def rank_state(self, network: nn.Module, optimizer: Optimizer) -> Mapping[str, Stateful]:
        """Return the state that each rank saves for itself."""
        return {}

    @abstractmethod
    def sum(self, tensor: torch.Tensor) -> None:
        """Sum over the ranks, in place."""

    @abstractmethod
    def broadcast(self, tensor: torch.Tensor) -> None:
        """Copy rank 0's tensor to all ranks, in place."""

    @abstractmethod
    def close(self) -> None:
        """Disconnect from the other ranks."""

    def allreduce(self, nbytes: int) -> None:
        if nbytes not in self.messages:
            self.messages[nbytes] = torch.zeros(max(1, nbytes // 4), device=self.device)
        self.sum(self.messages[nbytes])

    def allreduce_sum(self, values: Sequence[float]) -> List[float]:
        sums = torch.tensor(values, dtype=torch.float64, device=self.device)
        self.sum(sums)
        return [float(value) for value in sums.tolist()]


class Plain(Strategy):
    """One rank without any wrapper, as in a plain PyTorch script."""

    world_size, communication = 1, "none"
    trace_has_parts = True

    def wrap(self, network: nn.Module) -> nn.Module:
        return network

    def sync_gradients(self, synchronise: bool) -> ContextManager[Any]:
        return contextlib.nullcontext()

    def sum(self, tensor: torch.Tensor) -> None:
        pass

    def broadcast(self, tensor: torch.Tensor) -> None:
        pass

    def close(self) -> None:
        pass


def carrier(device: str, shared_gpus: bool) -> Tuple[str, str]:
    """Return (torch.distributed backend, its description). NCCL rejects ranks that share a GPU."""
    if device == "cpu":
        return "gloo", "gloo"
    return ("gloo", "gloo, ranks share a GPU") if shared_gpus else ("nccl", "nccl")


class Collectives(Strategy):
    """Ranks joined by torch.distributed: NCCL on GPUs, gloo on CPUs and for ranks that share a GPU."""

    trace_has_parts = True

    def __init__(self, spec: RunSpec, site: Site, rendezvous: Rendezvous, device: torch.device) -> None:
        super().__init__(spec, site, rendezvous, device)
        backend, self.communication = carrier(device.type, site.shared_gpus)
        self.world_size = init_process_group(backend, site, rendezvous)

    def sum(self, tensor: torch.Tensor) -> None:
        dist.all_reduce(tensor)

    def broadcast(self, tensor: torch.Tensor) -> None:
        dist.broadcast(tensor, 0)

    def close(self) -> None:
        destroy_process_group()
