"""The measuring loop: the same framework-independent code times every framework.

Read it from `run` downwards. Steps are timed in blocks between two fences, so that the loop adds no synchronisation to
the steps themselves. All reported speeds derive from the events written here.
"""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, Optional, Tuple

import numpy as np

from harness.core.events import EventWriter
from harness.core.measuring.protocol import Protocol
from harness.core.rendezvous import Rendezvous
from harness.core.spec import RunSpec
from harness.worker import probes, roofline_probe
from harness.worker.adapter import ALIGN_BYTES, Adapter, checksum
from harness.worker.checkpoint import Checkpoints
from harness.worker.data.batches import evaluation_batches
from harness.worker.data.sharding import evaluation_shard
from harness.worker.profiler_ranges import span
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
    """Run warm-up, timed steps, evaluation and probes, in this order: probes cannot affect the reported values.

    Evaluations during training take place between blocks and are not timed with them.

    Args:
        step: The adapter's step, possibly with an injected fault.
        protocol: Decides how many steps to take, starting where an earlier attempt stopped.
        leave: Returns True once this rank was told to stop; then all ranks save and stop at the same step.
        meter: Reads energy, outside the timed sections.
        recorder: Records all other resources, outside the timed sections.
        startup: Runs since the rank started.

    Returns:
        True when complete, False if the ranks stopped early.
    """
    measure, first_step = spec.measure, protocol.first_step
    if spec.evaluates_after(first_step):
        # Checkpoints precede evaluations, so the attempt that saved this one may have ended before evaluating.
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
            log_returned_servers(adapter, log, start)
            if start == first_step:
                first_seconds = seconds
                # Shows that gradients agree between ranks and between frameworks.
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
    for what in (*capture.emulated_precision(spec), *adapter.fallbacks()):
        log.write("fallback", what=what)
    updates = adapter.updates()
    if updates is not None:
        log.write("staleness", **updates)
    if measure.evaluate_samples:
        evaluate(spec, adapter, test, rendezvous, log, steps)
    log_returned_servers(adapter, log, steps)
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
    # Exit together: a rank that disappears early looks like a failure to its peers.
    adapter.allreduce(ALIGN_BYTES)
    adapter.fence()
    return True


def end_block(adapter: Adapter, rendezvous: Rendezvous, leave: bool, step_seconds: float) -> Tuple[bool, float]:
    """Return (any rank was told to leave, seconds per step of the slowest rank), equal on all ranks.

    This is the only exchange of a block. Each rank has its own summand, so that no sum is rounded.
    """
    places = [0.0] * rendezvous.world_size
    places[rendezvous.rank] = step_seconds
    leaving, *seconds = adapter.allreduce_sum([float(leave), *places])
    return leaving > 0, max(seconds)


def _ended(protocol: Protocol) -> Optional[Dict[str, Any]]:
    """Return how training ended, for the checkpoint; None while it continues."""
    return None if protocol.going else protocol.outcome()


def evaluate(spec: RunSpec, adapter: Adapter, test: Any, rendezvous: Rendezvous, log: EventWriter, steps: int) -> None:
    """Evaluate the test samples, each exactly once, over all ranks; not part of any throughput."""
    wanted = len(test) if spec.measure.evaluate_samples < 0 else min(spec.measure.evaluate_samples, len(test))
    replica, place = divmod(rendezvous.rank, spec.ranks_per_replica)
    shard = evaluation_shard(wanted, replica, spec.replicas)
    start = time.perf_counter()
    own, views = np.zeros(4), spec.measure.evaluate_views
    with adapter.evaluation():
        for images, labels in evaluation_batches(test, shard, spec.batch_per_replica):
            own += (len(labels), *score(logits_of(adapter.logits, images, views), labels))
        # Call as often as rank 0, which has most samples: with divided weights every call involves all ranks.
        largest = evaluation_shard(wanted, 0, spec.replicas)
        for _ in range(_batches(largest, spec) - _batches(shard, spec)):
            logits_of(adapter.logits, test.images(np.arange(1)), views)
    # The ranks of one replica score the same samples; count them once.
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


def log_returned_servers(adapter: Adapter, log: EventWriter, step: int) -> None:
    """Log which parameter servers came back since the last call."""
    for back in adapter.servers_back():
        log.write("server_back", step=step, **back)


def _batches(shard: np.ndarray, spec: RunSpec) -> int:
    return -(-len(shard) // spec.batch_per_replica)


def score(logits: np.ndarray, labels: np.ndarray) -> Tuple[int, int, float]:
    """Return (predictions, correct, summed cross-entropy in nats) for float [n, classes] and int [n], or for text [n,
    tokens, vocabulary] and [n, tokens], where each token is a prediction."""
    logits, labels = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    own = shifted[np.arange(len(labels)), labels]
    losses = np.log(np.exp(shifted).sum(axis=1)) - own
    return len(labels), int((logits.argmax(axis=1) == labels).sum()), float(losses.sum())


class Stopwatch:
    """Seconds of each phase of the start-up, in order."""

    def __init__(self, before: Optional[Dict[str, float]] = None) -> None:
        """before: phases that were over before the stopwatch was created."""
        self.laps: Dict[str, float] = dict(before or {})
        self._begun = self._last = time.perf_counter()

    def seconds(self) -> float:
        """Return the seconds since the rank started."""
        return time.perf_counter() - self._begun

    def lap(self, name: str, at: Optional[float] = None) -> None:
        """End a phase, now or at a given reading of perf_counter."""
        now = time.perf_counter() if at is None else at
        self.laps[name] = round(now - self._last, 6)
        self._last = now
