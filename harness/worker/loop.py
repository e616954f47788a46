"""THE measuring loop: the same code times every framework. It knows none.

Read it from `run` downwards. Steps are timed in blocks between two fences, so that the loop adds no synchronisation
to the steps themselves. Everything that a report says about speed comes from the events that are written here.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, Optional, Tuple

import numpy as np

from harness.core.events import EventWriter
from harness.core.rendezvous import Rendezvous
from harness.core.spec import RunSpec
from harness.worker import probes, roofline_probe
from harness.worker.adapter import ALIGN_BYTES, Adapter, checksum
from harness.worker.checkpoint import Checkpoints
from harness.worker.data.batches import evaluation_batches
from harness.worker.data.sharding import evaluation_shard
from harness.worker.profiler_ranges import span
from harness.worker.protocol import Protocol
from harness.worker.record import capture
from harness.worker.record.energy import Meter
from harness.worker.record.recorder import Recorder
from harness.worker.test_time_augmentation import logits_of
from harness.worker.timing import timed


def run(
    spec: RunSpec,
    adapter: Adapter,
    step: Callable[[], None],
    protocol: Protocol,
    test: Any,
    rendezvous: Rendezvous,
    log: EventWriter,
    checkpoints: Checkpoints,
    leave: Callable[[], bool],
    meter: Meter,
    recorder: Recorder,
    startup: Stopwatch,
) -> bool:
    """Warm-up, timed steps, evaluation, probes; in this order, so that the probes change nothing that is reported.
    Evaluations in the middle of training come between blocks, and are in no block's time.

    step: the adapter's, or that with a failure on purpose. protocol: how many steps, from where an earlier attempt was
    left. leave: whether this rank was told to leave; one rank is enough, and all leave at the same step, saved. meter:
    of energy; recorder: of all else; both read outside of the time that is measured. startup: running since the rank
    began.
    Gives False when they left, True when all is done.
    """
    measure, first_step = spec.measure, protocol.first_step
    if spec.evaluates_after(first_step):
        # A checkpoint comes before an evaluation: the attempt that wrote it may have ended in between.
        evaluate(spec, adapter, test, rendezvous, log, first_step)
    first_seconds = 0.0
    while protocol.going:
        for phase, start, n in protocol.parts:
            recorder.begin()
            counters = meter.counters()
            with span(f"{phase} from step {start}"):
                timing = timed(adapter, step, n)
            seconds = timing.seconds
            joules = meter.joules_since(counters)
            recorder.end(phase, start + n, n, seconds)
            counts = {"n": n, **timing._asdict(), "samples": n * spec.batch_per_gpu, "joules": joules}
            log.write("steps", phase=phase, step=start, **counts, loss=adapter.loss())
            log_returns(adapter, log, start)
            if start == first_step:
                first_seconds = seconds
                # That all ranks have the same gradients, and all frameworks too, is looked at where it is first seen.
                total, magnitude = adapter.first_gradients or (float("nan"), float("nan"))
                log.write("gradients", step=start, sum=total, magnitude=magnitude)
                adapter.reset_peak_memory()
        leaving, slowest = end_block(adapter, rendezvous, leave(), seconds / n)
        protocol.add(slowest)
        done = protocol.step
        if leaving or checkpoints.due(done):
            checkpoints.save(adapter, done, "leave" if leaving else "interval", _ended(protocol))
        if leaving:
            log.write("leave", step=done)
            return False
        if spec.evaluates_after(done):
            evaluate(spec, adapter, test, rendezvous, log, done)
    recorder.finish(adapter)
    steps = protocol.step
    checkpoints.save(adapter, steps, "end", _ended(protocol))
    log.write("protocol", **protocol.outcome())
    for what in (*capture.emulated(spec), *adapter.fallbacks()):
        log.write("fallback", what=what)
    updates = adapter.updates()
    if updates is not None:
        log.write("staleness", **updates)
    if measure.evaluate_samples:
        evaluate(spec, adapter, test, rendezvous, log, steps)
    log_returns(adapter, log, steps)
    log.write(
        "end",
        steps=steps,
        samples_seen=steps * spec.global_batch,
        samples=adapter.samples,
        weights_checksum=checksum(adapter.weights())[0],
    )
    if measure.probe_steps:
        probes.run(spec, adapter, rendezvous, log, startup.seconds(), first_seconds, protocol.step_seconds)
        roofline_probe.run(spec, adapter, log, startup.seconds())
    # Leaves together: a rank that is gone early looks like a failure to its peers.
    adapter.allreduce(ALIGN_BYTES)
    adapter.fence()
    return True


def end_block(adapter: Adapter, rendezvous: Rendezvous, leave: bool, step_seconds: float) -> Tuple[bool, float]:
    """The one exchange of a block: (whether a rank was told to leave, seconds per step of the slowest rank), the same
    on all ranks. Each rank has a place of its own among the summands, so that no sum rounds."""
    places = [0.0] * rendezvous.world_size
    places[rendezvous.rank] = step_seconds
    leaving, *seconds = adapter.allreduce_sum([float(leave), *places])
    return leaving > 0, max(seconds)


def _ended(protocol: Protocol) -> Optional[Dict[str, Any]]:
    """For a checkpoint: how training ended; None while it goes on."""
    return None if protocol.going else protocol.outcome()


def evaluate(spec: RunSpec, adapter: Adapter, test: Any, rendezvous: Rendezvous, log: EventWriter, steps: int) -> None:
    """Scores the test samples, each exactly once, over all ranks; not part of any throughput."""
    wanted = len(test) if spec.measure.evaluate_samples < 0 else min(spec.measure.evaluate_samples, len(test))
    replica, place = divmod(rendezvous.rank, spec.ranks_per_replica)
    shard = evaluation_shard(wanted, replica, spec.replicas)
    start = time.perf_counter()
    own, views = np.zeros(4), spec.measure.evaluate_views
    with adapter.evaluation():
        for images, labels in evaluation_batches(test, shard, spec.batch_per_replica):
            own += (len(labels), *score(logits_of(adapter.logits, images, views), labels))
        # As often as rank 0, whose share is the largest: where the weights are divided, all ranks take part each time.
        largest = evaluation_shard(wanted, 0, spec.replicas)
        for _ in range(_batches(largest, spec) - _batches(shard, spec)):
            logits_of(adapter.logits, test.images(np.arange(1)), views)
    # Ranks of one replica have scored the same samples: its first one says it.
    samples, predictions, correct, loss = adapter.allreduce_sum((own if place == 0 else np.zeros(4)).tolist())
    log.write(
        "eval",
        step=steps,
        samples_seen=steps * spec.global_batch,
        samples=round(samples),
        correct=round(correct),
        accuracy=correct / predictions,
        loss=loss / predictions,
        views=views,
        seconds=time.perf_counter() - start,
    )


def log_returns(adapter: Adapter, log: EventWriter, step: int) -> None:
    """What happened to parameter servers since it was asked last."""
    for back in adapter.servers_back():
        log.write("server_back", step=step, **back)


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


class Stopwatch:
    """Seconds of each part of the start-up, in order."""

    def __init__(self, before: Optional[Dict[str, float]] = None) -> None:
        """before: parts that had passed when it was made."""
        self.laps: Dict[str, float] = dict(before or {})
        self._begun = self._last = time.perf_counter()

    def seconds(self) -> float:
        """Since the rank began."""
        return time.perf_counter() - self._begun

    def lap(self, name: str, at: Optional[float] = None) -> None:
        """Ends a part, now or at a reading of perf_counter."""
        now = time.perf_counter() if at is None else at
        self.laps[name] = round(now - self._last, 6)
        self._last = now
