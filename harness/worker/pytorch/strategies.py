"""One class per strategy that PyTorch offers: how the ranks are joined, and how gradients become their mean.

To add one: write a class of the form of `Strategy`, put it into STRATEGIES, add conf/strategy/<name>.yaml, its options
to harness/schema.py, and its name to `strategies` in conf/framework/pytorch.yaml.
"""

from __future__ import annotations

import contextlib
import datetime
from abc import ABC, abstractmethod
from typing import Any, ContextManager, Dict, Iterator, List, Sequence, Type

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from harness.spec import RunSpec, Site
from harness.worker.rendezvous import Rendezvous

# More backward passes than there will be.
NEVER = 2**30


class Strategy(ABC):
    """Built as Strategy(spec, site, rendezvous, device): joins the other ranks.

    world_size: as the library that carries the gradients sees it. communication: what that is.
    """

    world_size: int
    communication: str
    # Whether backward may put new tensors into `.grad`, or adds to those that are there.
    new_gradients = True

    def __init__(self, spec: RunSpec, site: Site, rendezvous: Rendezvous, device: torch.device) -> None:
        self.spec, self.device = spec, device
        self.messages: Dict[int, torch.Tensor] = {}
        # Versions of what carries the gradients, where that is not PyTorch itself.
        self.carrier: Dict[str, str] = {}

    @abstractmethod
    def wrap(self, network: nn.Module) -> nn.Module:
        """The network as it is to be called in training."""

    @abstractmethod
    def exchange(self, synchronise: bool) -> ContextManager[Any]:
        """Around forward and backward; after it each parameter's `.grad` is the mean over the ranks, or, not
        synchronised, the rank's own."""

    @abstractmethod
    def sum(self, tensor: torch.Tensor) -> None:
        """Over the ranks, in place."""

    @abstractmethod
    def share(self, tensor: torch.Tensor) -> None:
        """Rank 0's, in place."""

    @abstractmethod
    def close(self) -> None:
        """Leaves the other ranks."""

    def allreduce(self, nbytes: int) -> None:
        if nbytes not in self.messages:
            self.messages[nbytes] = torch.zeros(max(1, nbytes // 4), device=self.device)
        self.sum(self.messages[nbytes])

    def total(self, values: Sequence[float]) -> List[float]:
        sums = torch.tensor(values, dtype=torch.float64, device=self.device)
        self.sum(sums)
        return [float(value) for value in sums.tolist()]


class Plain(Strategy):
    """One rank, and nothing around the network: what a user runs without any of this."""

    world_size, communication = 1, "none"

    def wrap(self, network: nn.Module) -> nn.Module:
        return network

    def exchange(self, synchronise: bool) -> ContextManager[Any]:
        return contextlib.nullcontext()

    def sum(self, tensor: torch.Tensor) -> None:
        pass

    def share(self, tensor: torch.Tensor) -> None:
        pass

    def close(self) -> None:
        pass


class Allreduce(Strategy):
    """DistributedDataParallel: gradients are averaged in buckets while backward goes on
    (Li et al. 2020, PyTorch Distributed, VLDB 13(12))."""

    def __init__(self, spec: RunSpec, site: Site, rendezvous: Rendezvous, device: torch.device) -> None:
        super().__init__(spec, site, rendezvous, device)
        self.communication = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(
            self.communication,
            init_method=f"tcp://{rendezvous.master_address}:{rendezvous.master_port}",
            rank=rendezvous.rank,
            world_size=rendezvous.world_size,
            timeout=datetime.timedelta(seconds=site.timeout_seconds),
        )
        self.world_size = dist.get_world_size()

    def wrap(self, network: nn.Module) -> nn.Module:
        self.wrapped = DistributedDataParallel(
            network,
            device_ids=[self.device.index] if self.device.type == "cuda" else None,
            bucket_cap_mb=self.spec.strategy_options["bucket_mb"],
            gradient_as_bucket_view=True,
        )
        return self.wrapped

    def exchange(self, synchronise: bool) -> ContextManager[Any]:
        return contextlib.nullcontext() if synchronise else self.wrapped.no_sync()

    def sum(self, tensor: torch.Tensor) -> None:
        dist.all_reduce(tensor)

    def share(self, tensor: torch.Tensor) -> None:
        dist.broadcast(tensor, 0)

    def close(self) -> None:
        dist.destroy_process_group()


class Horovod(Strategy):
    """Horovod's hooks send each gradient as soon as it is there, fused into messages by its background thread
    (Sergeev and Del Balso 2018, arXiv 1802.05799)."""

    new_gradients = False

    def __init__(self, spec: RunSpec, site: Site, rendezvous: Rendezvous, device: torch.device) -> None:
        super().__init__(spec, site, rendezvous, device)
        import horovod.torch as hvd

        from harness.worker import horovod

        self.hvd, self.carrier = hvd, horovod.versions()
        horovod.start(hvd, spec, site, rendezvous)
        self.communication = horovod.name(spec)
        self.world_size = hvd.size()

    def wrap(self, network: nn.Module) -> nn.Module:
        for weight in network.parameters():
            # Horovod takes contiguous tensors only; in a network in channels_last, new gradients would not be.
            weight.grad = torch.zeros(weight.shape, device=self.device)
        # Only its hooks and its wait are used; the step is that of the adapter's own optimiser, as everywhere.
        sgd = torch.optim.SGD(network.parameters(), lr=0.0)
        self.hooks = self.hvd.DistributedOptimizer(sgd, network.named_parameters(), op=self.hvd.Average)
        return network

    @contextlib.contextmanager
    def exchange(self, synchronise: bool) -> Iterator[None]:
        self.hooks.set_backward_passes_per_step(1 if synchronise else NEVER)
        yield
        if synchronise:
            self.hooks.synchronize()

    def sum(self, tensor: torch.Tensor) -> None:
        self.hvd.allreduce_(tensor, op=self.hvd.Sum, name=f"sum.{tensor.dtype}.{tensor.numel()}")

    def share(self, tensor: torch.Tensor) -> None:
        self.hvd.broadcast_(tensor, root_rank=0)

    def close(self) -> None:
        self.hvd.shutdown()


class Mpi(Strategy):
    """All gradients lie in one flat buffer; after backward MPI sums it, from GPU memory where the library can."""

    new_gradients = False

    def __init__(self, spec: RunSpec, site: Site, rendezvous: Rendezvous, device: torch.device) -> None:
        super().__init__(spec, site, rendezvous, device)
        from harness.worker import mpi

        self.ranks, self.carrier = mpi.MpiRanks(), mpi.versions()
        self.world_size = self.ranks.world_size
        self.on_host = device.type == "cpu" or not mpi.cuda_aware()
        through = ", through the host's memory" if device.type == "cuda" and self.on_host else ""
        self.communication = self.ranks.name + through

    def wrap(self, network: nn.Module) -> nn.Module:
        weights = list(network.parameters())
        self.flat = torch.zeros(sum(weight.numel() for weight in weights), device=self.device)
        for weight, part in zip(weights, self.flat.split([weight.numel() for weight in weights])):
            weight.grad = part.view_as(weight)
        return network

    @contextlib.contextmanager
    def exchange(self, synchronise: bool) -> Iterator[None]:
        yield
        if synchronise:
            self.sum(self.flat)
            self.flat /= self.world_size

    def sum(self, tensor: torch.Tensor) -> None:
        if self.device.type == "cpu":
            self.ranks.sum(tensor.numpy())
        elif self.on_host:
            host = tensor.cpu()
            self.ranks.sum(host.numpy())
            tensor.copy_(host)
        else:
            torch.cuda.synchronize(self.device)
            self.ranks.sum(tensor)

    def share(self, tensor: torch.Tensor) -> None:
        host = tensor.cpu().numpy()
        self.ranks.share(host)
        tensor.copy_(torch.from_numpy(host))

    def close(self) -> None:
        self.ranks.close()


STRATEGIES: Dict[str, Type[Strategy]] = {"plain": Plain, "allreduce": Allreduce, "horovod": Horovod, "mpi": Mpi}
