"""The interface between the measuring loop and a framework.

`harness/worker/<framework>/` defines a subclass `Adapter`, constructed as Adapter(spec, site, rendezvous, batches). It
joins the process group and builds the network (from its catalogue row and `models.initial`) and the optimiser. Weights
and gradients are exchanged as float32 NumPy arrays in the order and layout of `models.initial`.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from harness.worker.data.batches import Pipeline
from harness.worker.profiler_ranges import span

Checksum = Tuple[float, float]
# A negligible message that only makes the ranks wait for each other.
ALIGN_BYTES = 4
# Seeds of the operands of `product` and `copy`.
OPERAND_SEEDS = (0, 1)


class Adapter(ABC):
    """Only `fence`, `allreduce_sum` and methods that return NumPy arrays or numbers may wait for the device.

    separable: a step can run without its communication. compiles: `step_without_sync` is a separate program, compiled
    on its first call. has_one_rank_step: a step can run with everything but the other ranks. trace_has_parts:
    the framework's profiler sees all messages of a step, and each step has the same. wants_gradients: set it before
    a step other than the first after which `gradients` will be called, since a step may do more for it.
    """

    separable, compiles, has_one_rank_step, trace_has_parts = True, False, False, False
    wants_gradients = False

    def __init__(self, batches: Pipeline) -> None:
        self.batches = batches
        self.joined_at: Optional[float] = None
        # Images and labels of the last step, for the probes.
        self.cached: Optional[Any] = None
        self.samples = 0
        self.first_gradients: Optional[Checksum] = None

    def step(self) -> None:
        """Take one optimiser step on the next batch of the data pipeline."""
        with span("data"):
            images, labels = next(self.batches)
        with span("to_device"):
            self.cached = self.to_device(images, labels)
        with span("train"):
            self.train(self.cached, synchronise=True)
        self.samples += len(labels)
        if self.first_gradients is None:
            self.first_gradients = checksum(self.gradients())

    def cached_batch(self) -> Any:
        """Return the last step's batch, on the device."""
        assert self.cached is not None
        return self.cached

    def step_on_cached_batch(self) -> None:
        """Take the same step on the batch that is already on the device."""
        self.train(self.cached_batch(), synchronise=True)

    def step_without_sync(self) -> None:
        """Take the step on the cached batch without exchanging gradients. For probes of `separable` adapters only: the
        replicas diverge."""
        self.train(self.cached_batch(), synchronise=False)

    def one_rank_step(self) -> None:
        """Take the step on the cached batch as if this were the only rank, with all that the strategy does besides
        exchanging messages. For probes of adapters with `has_one_rank_step` only: the replicas diverge."""
        raise NotImplementedError

    def joined(self) -> None:
        """Record the end of the rendezvous; called once the ranks are joined, before the network is built."""
        self.joined_at = time.perf_counter()

    @abstractmethod
    def facts(self) -> Dict[str, Any]:
        """Return the fields of the start event: world_size as the communication library sees it, device, device_name,
        device_id, parameters, gradient_bytes, threads, versions, communication (the library that carries gradients)."""

    @abstractmethod
    def to_device(self, images: np.ndarray, labels: np.ndarray) -> Any:
        """Return the batch as the network takes it: on the device, (pixels / 255 - mean) / std of the data set.

        Images are uint8 [n, height, width, channels] with labels int64 [n]; text is uint8 [n, tokens] with the next
        tokens int64 [n, tokens]. Both are NumPy arrays or what the framework's own pipeline yields.
        """

    @abstractmethod
    def train(self, batch: Any, synchronise: bool) -> None:
        """Run forward, mean loss over this rank's samples (or tokens), backward, gradient averaging and optimiser step.

        Gradients are averaged over the replicas, which may span several ranks. SGD follows PyTorch: g += weight_decay *
        w; v = momentum * v + g; w -= lr * v (Nesterov: w -= lr * (g + momentum * v)), for every parameter, with lr =
        spec.optimizer.learning_rate(spec.global_batch, step).
        """

    def whiten(self, kernel: np.ndarray) -> None:
        """Set the kernel of the whitening layer, in the layout of `models.initial` and equal on all ranks, before the
        first step. Planning rejects networks with such a layer on frameworks that do not implement this."""
        raise NotImplementedError(f"{type(self).__module__} does not support whitening layers")

    @abstractmethod
    def gradients(self) -> List[np.ndarray]:
        """Return the gradients of the last step, averaged over the ranks, before weight decay; of steps other than the
        first, only with `wants_gradients`."""

    @abstractmethod
    def weights(self) -> List[np.ndarray]:
        """Return all trainable parameters."""

    @abstractmethod
    def logits(self, images: np.ndarray) -> np.ndarray:
        """Return float32 [n, classes] for uint8 [n, height, width, channels], or [n, tokens, vocabulary] for [n,
        tokens], for any n, with BatchNorm's running statistics."""

    @contextlib.contextmanager
    def evaluation(self) -> Iterator[None]:
        """Within this context `logits` uses the weights that the ranks trained together."""
        self.share_statistics()
        yield

    @abstractmethod
    def share_statistics(self) -> None:
        """Copy rank 0's running statistics of BatchNorm to every rank; they are local during training."""

    @abstractmethod
    def allreduce(self, nbytes: int) -> None:
        """Sum a float32 message of `nbytes` bytes over the ranks, as the strategy sums gradients."""

    @abstractmethod
    def allreduce_sum(self, values: Sequence[float]) -> List[float]:
        """Return the element-wise sums over the ranks on every rank; integers up to 2^24 are exact."""

    def updates(self) -> Optional[Dict[str, Any]]:
        """Return the staleness event of the whole run, once all ranks have taken their last step, on the rank that logs
        it; None on other ranks and without a server optimiser."""
        return None

    def fallbacks(self) -> List[str]:
        """Return one sentence for each way in which the run deviated from its request (fallback events)."""
        return []

    def servers_back(self) -> List[Dict[str, Any]]:
        """Return the parameter servers that came back since the last call (this rank's server_back events)."""
        return []

    def product(self, side: int) -> Optional[Callable[[int], Any]]:
        """Return a function that multiplies two side x side matrices n times in the run's precision and returns the
        last result when all are done; None if the framework does not compute. Operands are normally distributed, seeded
        by OPERAND_SEEDS: the speed of a GPU depends on the values."""
        return None

    def copy(self, nbytes: int) -> Optional[Callable[[int], Any]]:
        """Return a function that copies `nbytes` bytes of such numbers within device memory n times and returns the
        last result; None if the framework does not compute."""
        return None

    def reset_peak_memory(self) -> None:  # noqa: B027
        """Start counting `device_memory` here, after the first step, to exclude the workspaces of algorithms that it
        tried (cuDNN's benchmark). A no-op if the framework cannot reset its peak; device_peak_source then says so."""

    def device_memory(self) -> Dict[str, Any]:
        """Return the resources event's fields of a rank with a GPU: device_peak_bytes, the most memory in use since
        `reset_peak_memory`; device_reserved_peak_bytes, the most reserved; either None if unknown; and
        device_peak_source."""
        unknown = {"device_peak_bytes": None, "device_reserved_peak_bytes": None}
        return {**unknown, "device_peak_source": "none: the framework does not tell"}

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write this rank's state into `folder`, which all ranks share, so that training can continue exactly from
        here."""

    @abstractmethod
    def load(self, folder: Path) -> None:
        """Restore what `save` wrote, before the first step; training continues as if never interrupted."""

    @abstractmethod
    def fence(self) -> None:
        """Wait until this rank's device has finished all submitted work."""

    @abstractmethod
    def loss(self) -> float:
        """Return the training loss of this rank's last batch; call after a fence."""

    @abstractmethod
    def close(self) -> None:
        """Disconnect from the other ranks."""


def checksum(arrays: Sequence[np.ndarray]) -> Checksum:
    """Return (sum, sum of magnitudes) over all elements, in double precision."""
    total = sum(float(array.sum(dtype=np.float64)) for array in arrays)
    return total, sum(float(np.abs(array).sum(dtype=np.float64)) for array in arrays)
