"""What the adapters of TensorFlow, Keras, MXNet and JAX share. Knows no framework.

Every rank holds the whole network, and rank 0's copy is saved and scored for all; where parameter servers take the
optimiser step, theirs is scored, and each rank saves its own.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence

import numpy as np

from harness.core.rendezvous import Rendezvous
from harness.core.spec import RunSpec
from harness.worker import adapter
from harness.worker.data.batches import Pipeline

SAVED = "replica.npz"
SAVED_OF_RANK = "replica.rank{}.npz"


class Strategy(ABC):
    """How the ranks are joined. A framework's own base adds how gradients are exchanged.

    world_size: as the library that carries the gradients sees it. communication: what that is.
    """

    world_size: int
    communication: str
    rank: int
    # Whether parameter servers take the optimiser step: they hold its state, and each rank may have other weights.
    server_optimizer = False

    def hold(self, weights: Any) -> None:  # noqa: B027 most have nothing to do here
        """Called once with the network's weights."""

    def versions(self) -> Dict[str, str]:
        """Of what it needs beside the framework."""
        return {}

    @abstractmethod
    def allreduce(self, nbytes: int) -> None:
        """`Adapter.allreduce`."""

    @abstractmethod
    def allreduce_sum(self, values: np.ndarray) -> np.ndarray:
        """The sums of the ranks' arrays."""

    def broadcast(self, values: np.ndarray) -> np.ndarray:
        """Rank 0's array."""
        return self.allreduce_sum(values if self.rank == 0 else np.zeros_like(values))

    def means(self, gradients: Any) -> Any:
        """After a synchronised step: the mean of all ranks' gradients, where servers made it; else as given."""
        return gradients

    def current(self) -> Any:
        """The servers' weights, once every rank has taken its last step; None without a server optimiser."""
        return None

    def updates(self) -> Optional[Dict[str, Any]]:
        """`Adapter.updates`; asked on every rank."""
        return None

    def save(self, folder: Path) -> None:  # noqa: B027 only servers hold anything
        """What the servers hold; called on every rank."""

    def load(self, folder: Path) -> None:  # noqa: B027 only servers hold anything
        """On every rank, before the first step."""

    @abstractmethod
    def close(self) -> None:
        """Leaves the other ranks."""


class Adapter(adapter.Adapter):
    """The loop's verbs that do not depend on the framework."""

    strategy: Strategy

    def __init__(self, spec: RunSpec, rendezvous: Rendezvous, batches: Pipeline) -> None:
        super().__init__(batches)
        self.spec, self.rank, self.steps = spec, rendezvous.rank, 0
        # Whether the ranks exchanged gradients in the last step.
        self.synchronised = False

    @abstractmethod
    def own_weights(self) -> Any:
        """A copy of this rank's weights, for `take_weights`."""

    @abstractmethod
    def take_weights(self, weights: Any) -> None:
        """Trains on with these: from `own_weights`, or `Strategy.current`."""

    @abstractmethod
    def own_statistics(self) -> List[np.ndarray]:
        """This rank's running statistics of BatchNorm."""

    @abstractmethod
    def take_statistics(self, statistics: List[np.ndarray]) -> None:
        """Trains on with these, in the order of `own_statistics`."""

    @abstractmethod
    def checkpoint_arrays(self) -> Mapping[str, Any]:
        """Everything that training changes and that servers do not hold, by its name in a checkpoint."""

    @abstractmethod
    def load_arrays(self, saved: Mapping[str, np.ndarray]) -> None:
        """Goes on from what `checkpoint_arrays` gave."""

    @contextlib.contextmanager
    def evaluation(self) -> Iterator[None]:
        """With a server optimiser, the servers' weights are scored; training goes on from the rank's own."""
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
        # BatchNorm's statistics count only on rank 0, and none of the frameworks draws random numbers.
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
