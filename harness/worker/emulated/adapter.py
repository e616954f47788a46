"""An adapter with configured costs that trains nothing.

A step is: the next batch, `stall_ms` late; forward and backward, by waiting; and real messages. With strategy=allreduce
they are sent in buckets during backward (overlap=false: after it), with strategy=mpi as one message after it. For the
cost of each part see docs/validation.md.

The weights are the class frequencies of the samples, summed over the steps. So checkpoints, checksums and first
gradients show which samples the ranks used and whether they exchanged anything.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np

from harness.core.rendezvous import Rendezvous
from harness.core.spec import RunSpec, Site
from harness.worker import adapter as base
from harness.worker.data.batches import Pipeline
from harness.worker.emulated.link import MB, Link, parts
from harness.worker.emulated.waiting import Waiting, now
from harness.worker.emulated_noise import seconds_with_noise
from harness.worker.record import capture
from models import catalog

FLOAT = 4  # bytes
# Number of buckets with strategy=allreduce and bucket_mb=null.
BUCKETS = 4
STATE = "emulated.npz"


class DelayedBatches(Pipeline):
    """Batches without prefetching: each takes `seconds` when requested, or as long as the data pipeline if that is
    more."""

    def __init__(self, batches: Pipeline, seconds: float, waiting: Waiting) -> None:
        self.batches, self.seconds, self.waiting = batches, seconds, waiting

    def __next__(self) -> Tuple[np.ndarray, np.ndarray]:
        moment = now() + self.seconds
        batch = next(self.batches)
        self.waiting.until(moment)
        return batch

    def settle(self) -> None:
        """Wait for the underlying pipeline."""
        self.batches.settle()

    def close(self) -> None:
        self.batches.close()


class Adapter(base.Adapter):
    """All times are in seconds."""

    def __init__(self, spec: RunSpec, site: Site, rendezvous: Rendezvous, batches: Pipeline) -> None:
        self.waiting = Waiting()
        options = spec.framework_options
        super().__init__(DelayedBatches(batches, options["stall_ms"] / 1000, self.waiting))
        self.spec, self.rank = spec, rendezvous.rank
        self.link = Link(spec, site, rendezvous, options, self.waiting)
        self.joined()
        self.compute = options["compute_ms"] / 1000
        if options["batch_ref"]:
            self.compute *= spec.batch_per_gpu / options["batch_ref"]
        if self.rank == options["straggler_rank"]:
            self.compute += options["straggler_ms"] / 1000
        self.backward_fraction = options["backward_fraction"]
        self.overlap = spec.strategy == "allreduce" and spec.strategy_options["overlap"]
        self.classes = spec.dataset.classes
        size = max(self.classes, _message_bytes(spec) // FLOAT)
        # The first elements are the gradients, one per class; the others only add to the message.
        self.buffer = np.zeros(size, np.float32)
        self.buckets = parts(size, _buckets(spec, size * FLOAT))
        self.other_messages: Dict[int, np.ndarray] = {}
        self.tally = np.zeros(self.classes, np.float32)
        self.mean = np.zeros(self.classes, np.float32)
        self.sender = ThreadPoolExecutor(1)
        self.steps = 0

    def facts(self) -> Dict[str, Any]:
        return {
            "world_size": self.link.world_size,
            "communication": self.link.name,
            "device": "cpu",
            "device_name": capture.cpu_model() or "CPU",
            "device_id": None,
            "threads": self.spec.cluster.cpus_per_gpu,
            "parameters": self.buffer.size,
            "gradient_bytes": self.buffer.nbytes,
            "versions": {"numpy": np.__version__, **self.link.carrier.versions},
            "waiting": self.waiting.facts(),
        }

    def to_device(self, images: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the class frequencies of the labels, which is all that a step needs."""
        counts = np.bincount(labels.reshape(-1), minlength=self.classes)
        return (counts / labels.size).astype(np.float32)

    def train(self, batch: np.ndarray, synchronise: bool) -> None:
        begin = now()
        end = begin + self.compute_seconds()
        self.buffer[: self.classes] = batch
        if not synchronise:
            self.waiting.until(end)
        elif self.overlap:
            backward = end - self.backward_fraction * (end - begin)
            sent = self.sender.submit(self._send, backward, end)
            self.waiting.until(end)
            sent.result()
        else:
            self.waiting.until(end)
            self._send(end, end)
        self.mean = self.buffer[: self.classes] / np.float32(self.link.world_size if synchronise else 1)
        self.tally += self.mean
        self.steps += 1

    def compute_seconds(self) -> float:
        """Return the seconds of forward and backward of this step on this rank."""
        return seconds_with_noise(self.compute, self.spec.framework_options, self.spec.seed, self.rank, self.steps)

    def _send(self, begin: float, end: float) -> None:
        """Send the buckets in turn, each when backward, from `begin` to `end`, has reached it."""
        free = None
        for number, (first, last) in enumerate(self.buckets, start=1):
            self.waiting.until(begin + (end - begin) * number / len(self.buckets))
            free = self.link.sum(self.buffer[first:last], free)

    def whiten(self, kernel: np.ndarray) -> None:
        pass

    def gradients(self) -> List[np.ndarray]:
        return [self.mean]

    def weights(self) -> List[np.ndarray]:
        return [self.tally]

    def logits(self, images: np.ndarray) -> np.ndarray:
        raise RuntimeError("framework=emulated has no network to evaluate; set measure.evaluate_samples=0")

    def share_statistics(self) -> None:
        pass

    def allreduce(self, nbytes: int) -> None:
        """Sum a message; one as large as the gradients is sent in the same buckets."""
        size = max(1, nbytes // FLOAT)
        if size not in self.other_messages:
            self.other_messages[size] = np.zeros(size, np.float32)
        free = None
        for first, last in self.buckets if size == self.buffer.size else [(0, size)]:
            free = self.link.sum(self.other_messages[size][first:last], free)

    def allreduce_sum(self, values: Sequence[float]) -> List[float]:
        return self.link.allreduce_sum(values)

    def save(self, folder: Path) -> None:
        if self.rank == 0:
            np.savez(folder / STATE, tally=self.tally, steps=self.steps)

    def load(self, folder: Path) -> None:
        with np.load(folder / STATE) as state:
            self.tally, self.steps = state["tally"].copy(), int(state["steps"])

    def fence(self) -> None:
        pass

    def loss(self) -> float:
        return math.nan  # there is no loss; logged as null

    def close(self) -> None:
        self.sender.shutdown()
        self.link.carrier.close()


def _message_bytes(spec: RunSpec) -> int:
    """Return the configured message size, or that of the network's gradients."""
    if spec.framework_options["message_mb"] is not None:
        return int(spec.framework_options["message_mb"] * MB)
    data = spec.dataset
    return FLOAT * catalog.parameters(catalog.network(spec.model).layers(data.channels, data.classes, data.size))


def _buckets(spec: RunSpec, nbytes: int) -> int:
    if spec.strategy != "allreduce":
        return 1
    bucket_mb = spec.strategy_options["bucket_mb"]
    return BUCKETS if bucket_mb is None else math.ceil(nbytes / (bucket_mb * MB))


def versions() -> Dict[str, str]:
    """Return the versions of torch, which carries the messages, and NumPy."""
    return {"torch": metadata.version("torch"), "numpy": np.__version__}


def gpus() -> List[str]:
    """Return nothing: no GPU is used."""
    return []
