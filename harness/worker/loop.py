"""THE measuring loop: the same code times every framework. It knows none.

Read it from `run` downwards. Steps are timed in blocks between two fences, so that the loop adds no synchronisation
to the steps themselves. Everything that a report says about speed comes from the events that are written here.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, Iterator, Tuple

import numpy as np

from harness.events import EventWriter
from harness.spec import MeasureSpec, RunSpec
from harness.worker.adapter import Adapter, checksum
from harness.worker.checkpoint import Checkpoints
from harness.worker.data.batches import evaluation_batches
from harness.worker.data.sharding import evaluation_shard
from harness.worker.energy import Meter
from harness.worker.rendezvous import Rendezvous

# A message that costs next to nothing: it only makes the ranks wait for each other.
ALIGN_BYTES = 4


def run(
    spec: RunSpec,
    adapter: Adapter,
    step: Callable[[], None],
    first_step: int,
    test: Any,
    rendezvous: Rendezvous,
    log: EventWriter,
    checkpoints: Checkpoints,
    leave: Callable[[], bool],
    meter: Meter,
) -> bool:
    """Warm-up, timed steps, evaluation, probes; in this order, so that the probes change nothing that is reported.
    Evaluations in the middle of training come between blocks, and are in no block's time.

    step: the adapter's, or that with a failure on purpose. first_step: where an earlier attempt was left.
    leave: whether this rank was told to leave; one rank is enough, and all leave at the same step, saved. meter: of
    energy, read outside of the time that it meters.
    Gives False when they left, True when all is done.
    """
    measure = spec.measure
    if spec.evaluates_after(first_step):
        # A checkpoint comes before an evaluation: the attempt that wrote it may have ended in between.
        evaluate(spec, adapter, test, rendezvous, log, first_step)
    for phase, start, n in blocks(measure, first_step):
        counters = meter.counters()
        seconds = timed(adapter, step, n)
        joules = meter.joules_since(counters)
        counts = {"n": n, "seconds": seconds, "samples": n * spec.batch_per_gpu, "joules": joules}
        log.write("steps", phase=phase, step=start, **counts, loss=adapter.loss())
        if start == first_step:
            # That all ranks have the same gradients, and all frameworks too, is looked at where it is first to be seen.
            total, magnitude = adapter.first_gradients or (float("nan"), float("nan"))
            log.write("gradients", step=start, sum=total, magnitude=magnitude)
        leaving = adapter.total([float(leave())])[0] > 0
        if leaving or checkpoints.due(start + n):
            checkpoints.save(adapter, start + n, "leave" if leaving else "interval")
        if leaving:
            log.write("leave", step=start + n)
            return False
        if spec.evaluates_after(start + n):
            evaluate(spec, adapter, test, rendezvous, log, start + n)
    steps = measure.warmup_steps + measure.steps
    checkpoints.save(adapter, steps, "end")
    updates = adapter.updates()
    if updates is not None:
        log.write("staleness", **updates)
    if measure.evaluate_samples:
        evaluate(spec, adapter, test, rendezvous, log, steps)
    log.write(
        "end",
        steps=steps,
        samples_seen=steps * spec.global_batch,
        samples=adapter.samples,
        weights_checksum=checksum(adapter.weights())[0],
    )
    if measure.probe_steps:
        if first_step == steps:
            step()  # the probes need a batch that is on the device
        probe(adapter, measure.probe_steps, log)
    # Leaves together: a rank that is gone early looks like a failure to its peers.
    adapter.allreduce(ALIGN_BYTES)
    adapter.fence()
    return True


def blocks(measure: MeasureSpec, first_step: int) -> Iterator[Tuple[str, int, int]]:
    """(phase, first step, steps) of each block from `first_step` on, which is an end of a block.

    After a restart everything is cold again: the first steps are logged as 'rewarm', in no throughput figure.
    """
    start = 0
    for phase, count in (("warmup", measure.warmup_steps), ("measure", measure.steps)):
        end = start + count
        while start < end:
            n = min(measure.block_steps, end - start)
            if start >= first_step:
                cold = first_step > 0 and start < first_step + measure.warmup_steps
                yield ("rewarm" if cold and phase == "measure" else phase), start, n
            start += n


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
    replica, place = divmod(rendezvous.rank, spec.ranks_per_replica)
    shard = evaluation_shard(wanted, replica, spec.replicas)
    start = time.perf_counter()
    own = np.zeros(4)
    with adapter.evaluation():
        for images, labels in evaluation_batches(test, shard, spec.batch_per_replica):
            own += (len(labels), *score(adapter.logits(images), labels))
        # As often as rank 0, whose share is the largest: where the weights are divided, all ranks take part each time.
        largest = evaluation_shard(wanted, 0, spec.replicas)
        for _ in range(_batches(largest, spec) - _batches(shard, spec)):
            adapter.logits(test.images(np.arange(1)))
    # Ranks of one replica have scored the same samples: its first one says it.
    samples, predictions, correct, loss = adapter.total((own if place == 0 else np.zeros(4)).tolist())
    log.write(
        "eval",
        step=steps,
        samples_seen=steps * spec.global_batch,
        samples=round(samples),
        correct=round(correct),
        accuracy=correct / predictions,
        loss=loss / predictions,
        seconds=time.perf_counter() - start,
    )


def _batches(shard: np.ndarray, spec: RunSpec) -> int:
    return -(-len(shard) // spec.batch_per_replica)


def score(logits: np.ndarray, labels: np.ndarray) -> Tuple[int, int, float]:
    """(predictions, correct, summed cross-entropy in nats) of float [n, classes] and int [n]; of text [n, tokens,
    vocabulary] and [n, tokens], where each token is a prediction."""
    logits, labels = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    own = shifted[np.arange(len(labels)), labels]
    losses = np.log(np.exp(shifted).sum(axis=1)) - own
    return len(labels), int((logits.argmax(axis=1) == labels).sum()), float(losses.sum())


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
        if (name == "no_sync" and not adapter.separable) or (name == "allreduce" and not gradient_bytes):
            continue
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
