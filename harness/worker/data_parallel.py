"""Base of the adapters of TensorFlow, Keras, MXNet and JAX.

Every rank holds the whole network, and rank 0's copy is saved and evaluated. With a server optimiser the servers'
weights are evaluated, and each rank saves its own.
"""

from __future__ import annotations

import contextlib
import importlib
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence

import numpy as np

from harness.core.rendezvous import Rendezvous
from harness.core.spec import RunSpec, Site
from harness.worker import adapter
from harness.worker.data.batches import Pipeline

SAVED = "replica.npz"
SAVED_OF_RANK = "replica.rank{}.npz"


class Strategy(ABC):
    """Joins the ranks. Each framework's base class adds how gradients are exchanged.

    world_size: as the communication library sees it. communication: the name of that library.
    """

    world_size: int
    communication: str
    rank: int
    # Parameter servers take the optimiser step: they hold its state, and weights may differ between ranks.
    server_optimizer = False
    # Versions of libraries used besides the framework.
    carrier: Mapping[str, str] = {}

    def register_weights(self, weights: Any) -> None:  # noqa: B027 optional hook
        """Receive the network's weights; called once."""

    @abstractmethod
    def allreduce(self, nbytes: int) -> None:
        """See `Adapter.allreduce`."""

    @abstractmethod
    def allreduce_sum(self, values: np.ndarray) -> np.ndarray:
        """Return the element-wise sum over the ranks."""

    def broadcast(self, values: np.ndarray) -> np.ndarray:
        """Return rank 0's array."""
        return self.allreduce_sum(values if self.rank == 0 else np.zeros_like(values))

    def means(self, gradients: Any) -> Any:
        """Return the gradients averaged over all ranks after a synchronised step: the servers' if they average, else as
        given."""
        return gradients

    def current(self) -> Any:
        """Return the servers' weights after every rank's last step; None without a server optimiser."""
        return None

    def updates(self) -> Optional[Dict[str, Any]]:
        """See `Adapter.updates`; called on every rank."""
        return None

    def save(self, folder: Path) -> None:  # noqa: B027 only servers hold anything
        """Save the servers' state; called on every rank."""

    def load(self, folder: Path) -> None:  # noqa: B027 only servers hold anything
        """Restore the servers' state before the first step; called on every rank."""

    @abstractmethod
    def close(self) -> None:
        """Disconnect from the other ranks."""


class ByMpi(Strategy):
    """Base of strategies that sum with MPI in host memory; list it before the framework's own base."""

    def __init__(self, spec: RunSpec, *arguments: Any) -> None:
        super().__init__(spec, *arguments)  # type: ignore[call-arg]
        from harness.worker.distributed import mpi

        self.ranks, self.carrier = mpi.MpiRanks(), mpi.versions()
        self.world_size = self.ranks.world_size
        self.communication = f"{self.ranks.name}{through_host(spec)}"

    def close(self) -> None:
        self.ranks.close()


class ByHorovod(Strategy):
    """Base of strategies that use Horovod; list it before the framework's own base. library: its module for the
    framework."""

    library: str

    def __init__(self, spec: RunSpec, site: Site, rendezvous: Rendezvous, *arguments: Any) -> None:
        super().__init__(spec, site, rendezvous, *arguments)  # type: ignore[call-arg]
        self.hvd: Any = importlib.import_module(self.library)
        from harness.worker.distributed import horovod

        self.nodes, self.carrier = horovod.start(self.hvd, spec, site, rendezvous), horovod.versions()
        self.compression = horovod.compression(self.hvd, spec)
        self.communication = horovod.name(self.hvd, spec, self.nodes)
        self.world_size = self.hvd.size()

    def close(self) -> None:
        self.hvd.shutdown()


def through_host(spec: RunSpec) -> str:
    """Return the suffix of `communication` for gradients that pass through host memory."""
    return ", through the host's memory" if spec.cluster.device == "cuda" else ""


class Adapter(adapter.Adapter):
    """The loop's methods that do not depend on the framework."""

    strategy: Strategy

    def __init__(self, spec: RunSpec, rendezvous: Rendezvous, batches: Pipeline) -> None:
        super().__init__(batches)
        self.spec, self.rank, self.steps = spec, rendezvous.rank, 0
        # The ranks exchanged gradients in the last step.
        self.synchronised = False

    @abstractmethod
    def own_weights(self) -> Any:
        """Return a copy of this rank's weights for `take_weights`."""

    @abstractmethod
    def take_weights(self, weights: Any) -> None:
        """Continue training with these weights, from `own_weights` or `Strategy.current`."""

    @abstractmethod
    def own_statistics(self) -> List[np.ndarray]:
        """Return this rank's running statistics of BatchNorm."""

    @abstractmethod
    def take_statistics(self, statistics: List[np.ndarray]) -> None:
        """Continue training with these statistics, in the order of `own_statistics`."""

    @abstractmethod
    def checkpoint_arrays(self) -> Mapping[str, Any]:
        """Return the training state that servers do not hold, by its name in a checkpoint."""

    @abstractmethod
    def load_arrays(self, saved: Mapping[str, np.ndarray]) -> None:
        """Restore the arrays of `checkpoint_arrays`."""

    @contextlib.contextmanager
    def evaluation(self) -> Iterator[None]:
        """Evaluate the servers' weights if there is a server optimiser; training continues from the rank's own."""
        self.share_statistics()
        if not self.strategy.server_optimizer:
            yield
            return
        own = self.own_weights()
        self.take_weights(self.strategy.current())
        yield
        self.take_weights(own)

    def share_statistics(self) -> None:
        own = self.own_statistics()
        if not own:
            return
        shared = self.strategy.broadcast(np.concatenate([array.ravel() for array in own]))
        parts = np.split(shared, np.cumsum([array.size for array in own])[:-1])
        self.take_statistics([part.reshape(array.shape) for part, array in zip(parts, own)])

    def allreduce(self, nbytes: int) -> None:
        self.strategy.allreduce(nbytes)

    def allreduce_sum(self, values: Sequence[float]) -> List[float]:
        return [float(value) for value in self.strategy.allreduce_sum(np.array(values, np.float64))]

    def updates(self) -> Optional[Dict[str, Any]]:
        return self.strategy.updates()

    def save(self, folder: Path) -> None:
        # Only rank 0's statistics of BatchNorm count, and none of these frameworks draws random numbers.
        if self.rank == 0 or self.strategy.server_optimizer:
            np.savez(folder / self._file(), steps=self.steps, **self.checkpoint_arrays())
        self.strategy.save(folder)

    def load(self, folder: Path) -> None:
        self.strategy.load(folder)
        with np.load(folder / self._file()) as saved:
            self.load_arrays(saved)
            self.steps = int(saved["steps"])

    def close(self) -> None:
        self.strategy.close()

    def _file(self) -> str:
        return SAVED_OF_RANK.format(self.rank) if self.strategy.server_optimizer else SAVED
