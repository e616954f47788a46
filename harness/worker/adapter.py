"""What a framework offers to the measuring loop. Knows no framework.

`harness/worker/<framework>/` has a class `Adapter` of this form, built as Adapter(spec, site, rendezvous, batches): it
joins the other ranks, builds the network from the catalogue's row and `models.initial`, and its optimiser. Arrays of
weights and gradients are NumPy, float32, in the order and the layout of `models.initial`, whatever the framework's own
are.
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
# A message that costs next to nothing: it only makes the ranks wait for each other.
ALIGN_BYTES = 4
# Of the two operands that `product` and `copy` draw.
OPERAND_SEEDS = (0, 1)


class Adapter(ABC):
    """No verb but `fence`, `allreduce_sum`, and those that give NumPy arrays or numbers may wait for the device.

    separable: whether a step can be taken without what the ranks exchange in it. compiles: whether that is a program of
    its own, compiled at its first call.
    """

    separable, compiles = True, False

    def __init__(self, batches: Pipeline) -> None:
        self.batches = batches
        self.joined_at: Optional[float] = None
        # On the device: images and labels of the last step, for the probes.
        self.cached: Optional[Any] = None
        self.samples = 0
        self.first_gradients: Optional[Checksum] = None

    def step(self) -> None:
        """One optimiser step on the next batch of the data pipeline."""
        with span("data"):
            images, labels = next(self.batches)
        with span("to_device"):
            self.cached = self.to_device(images, labels)
        with span("train"):
            self.train(self.cached, synchronise=True)
        self.samples += len(labels)
        if self.first_gradients is None:
            self.first_gradients = checksum(self.gradients())

    def step_on_cached_batch(self) -> None:
        """The same step on a batch that is already on the device."""
        assert self.cached is not None
        self.train(self.cached, synchronise=True)

    def step_without_sync(self) -> None:
        """The same step on the cached batch, gradients not exchanged; only for probes, the ranks drift apart.

        Only where the adapter is `separable`."""
        assert self.cached is not None
        self.train(self.cached, synchronise=False)

    def joined(self) -> None:
        """Called once the other ranks are met: so far goes the rendezvous, and what follows is building the network."""
        self.joined_at = time.perf_counter()

    @abstractmethod
    def facts(self) -> Dict[str, Any]:
        """For the start event: world_size as the framework (or Horovod, or MPI) sees it, device, device_name,
        device_id, parameters, gradient_bytes, threads, versions, communication (the library that carries gradients)."""

    @abstractmethod
    def to_device(self, images: np.ndarray, labels: np.ndarray) -> Any:
        """uint8 [n, height, width, channels] and int64 [n] -> the batch as the network takes it: pixels / 255, less
        spec.dataset.mean, by spec.dataset.std, on the device. Of text uint8 [n, tokens] and int64 [n, tokens], those
        that follow. NumPy's arrays, or those that the framework's own pipelines give."""

    @abstractmethod
    def train(self, batch: Any, synchronise: bool) -> None:
        """Forward, mean loss over the rank's batch (of text, over its tokens), backward, mean of the gradients over the
        ranks, optimiser step; where several ranks have one copy of the model between them, the mean over the copies.

        SGD as PyTorch has it: g += weight_decay * w; v = momentum * v + g; w -= lr * v (nesterov: w -= lr * (g +
        momentum * v)), for every parameter, with lr = spec.optimizer.learning_rate(spec.global_batch, step).
        """

    def whiten(self, kernel: np.ndarray) -> None:
        """Called before the first step where the network has a layer that whitens: its kernel, in the layout of
        `models.initial`, the same on all ranks. The plan refuses such a network where this is not offered."""
        raise NotImplementedError(f"{type(self).__module__} builds no layer that whitens")

    @abstractmethod
    def gradients(self) -> List[np.ndarray]:
        """Of the last training step: the means over the ranks, before weight decay."""

    @abstractmethod
    def weights(self) -> List[np.ndarray]:
        """All trainable parameters."""

    @abstractmethod
    def logits(self, images: np.ndarray) -> np.ndarray:
        """float32 [n, classes] for uint8 [n, height, width, channels]; [n, tokens, vocabulary] for [n, tokens].
        BatchNorm with its running statistics. Any n."""

    @contextlib.contextmanager
    def evaluation(self) -> Iterator[None]:
        """Around scoring: inside it `logits` is what the ranks have learned together."""
        self.share_statistics()
        yield

    @abstractmethod
    def share_statistics(self) -> None:
        """Every rank takes rank 0's running statistics of BatchNorm, which until now were its own."""

    @abstractmethod
    def allreduce(self, nbytes: int) -> None:
        """Sums a message of `nbytes` bytes of float32 over the ranks, as the strategy sums gradients."""

    @abstractmethod
    def allreduce_sum(self, values: Sequence[float]) -> List[float]:
        """Sums of the ranks' values, one by one, on every rank; whole numbers up to 2^24 are exact."""

    def updates(self) -> Optional[Dict[str, Any]]:
        """For the staleness event, when all ranks have taken their last step: of the whole run, on the rank that is to
        log it; None on others, and where no servers apply the updates."""
        return None

    def fallbacks(self) -> List[str]:
        """For fallback events, after the last step: what was not done as the run asks for it, one sentence each."""
        return []

    def servers_back(self) -> List[Dict[str, Any]]:
        """For server_back events, of this rank: which parameter servers came back since this was asked last."""
        return []

    def product(self, side: int) -> Optional[Callable[[int], Any]]:
        """For the ceilings: a function that multiplies two matrices of side x side, in the run's precision, n times,
        and returns the last result once all are done; None where the framework computes nothing. Operands are normally
        distributed random numbers, drawn from OPERAND_SEEDS: how fast a GPU multiplies depends on the values."""
        return None

    def copy(self, nbytes: int) -> Optional[Callable[[int], Any]]:
        """For the ceilings: a function that reads `nbytes` bytes of such numbers from the device's memory and writes as
        many, n times, and returns the last result; None as above."""
        return None

    def reset_peak_memory(self) -> None:  # noqa: B027
        """Called once, after the first step: `device_memory` counts from here, so that the workspaces of the algorithms
        that were tried in it (cuDNN's benchmark) are left out. Does nothing where the framework cannot reset its peak;
        device_peak_source then says that they are included."""

    def device_memory(self) -> Dict[str, Any]:
        """For the resources event, of a rank with a GPU: device_peak_bytes, the most of the device's memory that the
        framework had in use since `reset_peak_memory`; device_reserved_peak_bytes, the most that it held, unused parts
        included; each None where it does not tell; device_peak_source: which of its functions says so, and since when.
        """
        unknown = {"device_peak_bytes": None, "device_reserved_peak_bytes": None}
        return {**unknown, "device_peak_source": "none: the framework does not tell"}

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Writes into `folder`, which all ranks share, what this rank must keep to go on exactly from here."""

    @abstractmethod
    def load(self, folder: Path) -> None:
        """Takes back what `save` wrote, before the first step: what follows is as if the run had never been cut."""

    @abstractmethod
    def fence(self) -> None:
        """Returns when all work that was given to this rank's device is done."""

    @abstractmethod
    def loss(self) -> float:
        """Training loss of this rank's last batch; after a fence."""

    @abstractmethod
    def close(self) -> None:
        """Leaves the other ranks."""


def checksum(arrays: Sequence[np.ndarray]) -> Checksum:
    """(sum, sum of magnitudes) over all elements, in double precision."""
    total = sum(float(array.sum(dtype=np.float64)) for array in arrays)
    return total, sum(float(np.abs(array).sum(dtype=np.float64)) for array in arrays)
