"""What a strategy offers to the PyTorch adapter, and the one that does nothing."""

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
    """A part of a checkpoint."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> Any: ...


AUTOCAST = {"fp32": None, "tf32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(spec: RunSpec, device: torch.device) -> ContextManager[Any]:
    """Around forward and loss: computes in the run's precision."""
    number = AUTOCAST[spec.precision]
    if number is None:
        return contextlib.nullcontext()
    # A copy of a weight that is kept for later would be one in the memory of a graph.
    return torch.autocast(device.type, number, cache_enabled=not spec.framework_options.get("cuda_graph", False))


def cross_entropy(outputs: torch.Tensor, labels: torch.Tensor, smoothing: float = 0.0) -> torch.Tensor:
    """Mean over all predictions: of [n, classes] and [n]; of text [n, tokens, vocabulary] and [n, tokens]."""
    return functional.cross_entropy(outputs.flatten(0, -2), labels.flatten(), label_smoothing=smoothing)


class Strategy(ABC):
    """Built as Strategy(spec, site, rendezvous, device): joins the other ranks.

    world_size: as the library that carries the gradients sees it. communication: what that is.
    """

    world_size: int
    communication: str
    # Whether backward may put new tensors into `.grad`, or adds to those that are there.
    new_gradients = True
    # Whether a step can be taken without the exchange.
    separable = True

    def __init__(self, spec: RunSpec, site: Site, rendezvous: Rendezvous, device: torch.device) -> None:
        self.spec, self.device = spec, device
        self.messages: Dict[int, torch.Tensor] = {}
        # Versions of what carries the gradients, where that is not PyTorch itself.
        self.carrier: Dict[str, str] = {}

    def to_device(self, network: nn.Module) -> nn.Module:
        """The network as it was built, on the host -> as `wrap` takes it."""
        return network.to(self.device)

    @abstractmethod
    def wrap(self, network: nn.Module) -> nn.Module:
        """The network as it is to be called in training."""

    def optimizer(self, parameters: List[nn.Parameter], of: Type[Optimizer], settings: Dict[str, Any]) -> Optimizer:
        """What takes the step, after `sync_gradients`: of(parameters, **settings), or the strategy's own."""
        return of(parameters, **settings)

    @abstractmethod
    def sync_gradients(self, synchronise: bool) -> ContextManager[Any]:
        """Around forward and backward; after it each parameter's `.grad` is the mean over the ranks, or, not
        synchronised, the rank's own."""

    def forward_backward(
        self, network: nn.Module, scaler: Any, inputs: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        """Forward and backward, inside `sync_gradients`. Gives the mean loss of the batch, where this rank knows it."""
        with span("forward"), autocast(self.spec, self.device):
            loss = cross_entropy(network(inputs), labels, self.spec.optimizer.label_smoothing)
        with span("backward"):
            scaler.scale(loss).backward()
        return loss.detach()

    def loss(self, learned: torch.Tensor) -> float:
        """Of what `forward_backward` gave last, on all ranks at the same time: the loss of this rank's batch."""
        return float(learned.item())

    def logits(self, network: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
        """Of the plain network, without gradients; on all ranks that have one copy of it between them, equally."""
        outputs: torch.Tensor = network(inputs)
        return outputs

    def full_tensors(self, tensors: List[torch.Tensor]) -> List[torch.Tensor]:
        """Of a tensor for each parameter that this rank has: those of all parameters of the network, in its order."""
        return tensors

    def gradient_bytes(self, parameters: List[nn.Parameter]) -> int:
        """What one rank contributes to an allreduce of all gradients; 0: there is none."""
        return sum(p.numel() * p.element_size() for p in parameters)

    def after_step(self, steps: int, synchronise: bool) -> None:  # noqa: B027 most have nothing to do here
        """After the optimiser's step; steps: so many have been taken."""

    def evaluation(self) -> ContextManager[Any]:
        """Inside it the network has the weights that are to be scored."""
        return contextlib.nullcontext()

    def means(self) -> None:  # noqa: B027 most have nothing to do here
        """After a synchronised step: where servers made the mean, it is fetched into `.grad`. Synchronous ones only."""

    def updates(self) -> Optional[Dict[str, Any]]:
        """`Adapter.updates`."""
        return None

    def servers_back(self) -> List[Dict[str, Any]]:
        """`Adapter.servers_back`."""
        return []

    def replicated_state(self, network: nn.Module, optimizer: Optimizer) -> Mapping[str, Stateful]:
        """What a checkpoint must hold and all ranks hold equally."""
        return {"network": network, "optimizer": optimizer}

    def rank_state(self, network: nn.Module, optimizer: Optimizer) -> Mapping[str, Stateful]:
        """What a checkpoint must hold of each rank."""
        return {}

    @abstractmethod
    def sum(self, tensor: torch.Tensor) -> None:
        """Over the ranks, in place."""

    @abstractmethod
    def broadcast(self, tensor: torch.Tensor) -> None:
        """Rank 0's, in place."""

    @abstractmethod
    def close(self) -> None:
        """Leaves the other ranks."""

    def allreduce(self, nbytes: int) -> None:
        if nbytes not in self.messages:
            self.messages[nbytes] = torch.zeros(max(1, nbytes // 4), device=self.device)
        self.sum(self.messages[nbytes])

    def allreduce_sum(self, values: Sequence[float]) -> List[float]:
        sums = torch.tensor(values, dtype=torch.float64, device=self.device)
        self.sum(sums)
        return [float(value) for value in sums.tolist()]


class Plain(Strategy):
    """One rank, and nothing around the network: what a user runs without any of this."""

    world_size, communication = 1, "none"

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
    """(the backend of torch.distributed, what a run says of it). NCCL refuses ranks that share a GPU."""
    if device == "cpu":
        return "gloo", "gloo"
    return ("gloo", "gloo, ranks share a GPU") if shared_gpus else ("nccl", "nccl")


class Collectives(Strategy):
    """Ranks that are joined by torch.distributed: NCCL on GPUs, gloo on CPUs and where ranks share a GPU."""

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
