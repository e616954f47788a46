"""THE measuring loop: the same code times every framework. It knows none.

Read it from `run` downwards. Steps are timed in blocks between two fences, so that the loop adds no synchronisation
to the steps themselves. Everything that a report says about speed comes from the events that are written here.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any, Callable, Dict, Iterator, Tuple

import numpy as np

from harness.events import EventWriter
from harness.spec import RunSpec
from harness.worker.data.batches import evaluation_batches
from harness.worker.data.sharding import evaluation_shard
from harness.worker.rendezvous import Rendezvous

# A message that costs next to nothing: it only makes the ranks wait for each other.
ALIGN_BYTES = 4


class Adapter(ABC):
    """What a framework offers to the loop; `harness/worker/<framework>/` has a class `Adapter` of this form.

    Built as Adapter(spec, site, rendezvous, batches): joins the other ranks, builds the network and its optimiser.
    No verb but `fence` may wait for the device.
    """

    @abstractmethod
    def facts(self) -> Dict[str, Any]:
        """For the start event: world_size as the framework sees it, device, device_name, device_id, parameters,
        gradient_bytes, threads, versions."""

    @abstractmethod
    def step(self) -> None:
        """One optimiser step on the next batch of the data pipeline."""

    @abstractmethod
    def step_on_cached_batch(self) -> None:
        """The same step on a batch that is already on the device."""

    @abstractmethod
    def step_without_sync(self) -> None:
        """The same step on the cached batch, gradients not exchanged; only for probes, the ranks drift apart."""

    @abstractmethod
    def allreduce(self, nbytes: int) -> None:
        """Sums a message of `nbytes` bytes of float32 over the ranks."""

    @abstractmethod
    def fence(self) -> None:
        """Returns when all work that was given to this rank's device is done."""

    @abstractmethod
    def loss(self) -> float:
        """Training loss of this rank's last batch; after a fence."""

    @abstractmethod
    def evaluate(self, batches: Iterator[Tuple[np.ndarray, np.ndarray]]) -> Tuple[int, int, float]:
        """(samples, correct, summed loss) over the shards of all ranks; each rank gives its own shard's batches."""

    @abstractmethod
    def weights_checksum(self) -> float:
        """Sum of all weights in double precision."""

    @abstractmethod
    def close(self) -> None:
        """Leaves the other ranks."""


def run(spec: RunSpec, adapter: Adapter, test: Any, rendezvous: Rendezvous, log: EventWriter) -> None:
    """Warm-up, timed steps, evaluation, probes; in this order, so that the probes change nothing that is reported."""
    measure = spec.measure
    steps = 0
    for phase, count in (("warmup", measure.warmup_steps), ("measure", measure.steps)):
        while count > 0:
            n = min(measure.block_steps, count)
            seconds = timed(adapter, adapter.step, n)
            log.write(
                "steps",
                phase=phase,
                step=steps,
                n=n,
                seconds=seconds,
                samples=n * spec.batch_per_gpu,
                loss=adapter.loss(),
            )
            steps += n
            count -= n
    if measure.evaluate_samples:
        evaluate(spec, adapter, test, rendezvous, log, steps)
    log.write("end", steps=steps, samples_seen=steps * spec.global_batch, weights_checksum=adapter.weights_checksum())
    if measure.probe_steps:
        probe(adapter, measure.probe_steps, log)
    # Leaves together: a rank that is gone early looks like a failure to its peers.
    adapter.allreduce(ALIGN_BYTES)
    adapter.fence()


def timed(adapter: Adapter, step: Callable[[], None], n: int) -> float:
    """Seconds of `n` steps on this rank's monotonic clock, between two fences."""
    adapter.fence()
    start = time.perf_counter()
    for _ in range(n):
        step()
    adapter.fence()
    return time.perf_counter() - start


def evaluate(spec: RunSpec, adapter: Adapter, test: Any, rendezvous: Rendezvous, log: EventWriter, steps: int) -> None:
    """Scores the test samples, each exactly once, over all ranks; not part of any throughput."""
    wanted = len(test) if spec.measure.evaluate_samples < 0 else min(spec.measure.evaluate_samples, len(test))
    shard = evaluation_shard(wanted, rendezvous.rank, rendezvous.world_size)
    start = time.perf_counter()
    samples, correct, loss = adapter.evaluate(evaluation_batches(test, shard, spec.batch_per_gpu))
    log.write(
        "eval",
        step=steps,
        samples_seen=steps * spec.global_batch,
        samples=samples,
        correct=correct,
        accuracy=correct / samples,
        loss=loss / samples,
        seconds=time.perf_counter() - start,
    )


def probe(adapter: Adapter, n: int, log: EventWriter) -> None:
    """The differences between these say where the time goes (docs/architecture.md, "The measuring loop").

    Each probe starts with the ranks aligned and one untimed step: buffers, caches.
    """
    gradient_bytes = adapter.facts()["gradient_bytes"]
    probes: Tuple[Tuple[str, Callable[[], None], Dict[str, int]], ...] = (
        ("cached_batch", adapter.step_on_cached_batch, {}),
        ("allreduce", lambda: adapter.allreduce(gradient_bytes), {"bytes": gradient_bytes}),
        ("no_sync", adapter.step_without_sync, {}),
    )
    for name, step, extra in probes:
        step()
        adapter.allreduce(ALIGN_BYTES)
        seconds = timed(adapter, step, n)
        log.write("probe", probe=name, n=n, seconds=seconds, **extra)


class Stopwatch:
    """Seconds of each part of the start-up, in order."""

    def __init__(self) -> None:
        self.laps: Dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name] = round(now - self._last, 6)
        self._last = now
