"""Times blocks of steps and writes the rank's event log, whatever it is that tells it of the steps.

Fences only at the ends of blocks and around what is left out, so the training is not slowed down.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from time import perf_counter
from typing import Any, NoReturn

from _scaling_probe import facts
from _scaling_probe.ending import Refused, StopTraining, exit_within_deadline
from _scaling_probe.interval import HandedOut, Interval
from _scaling_probe.log import EventLog
from _scaling_probe.settings import Settings
from _scaling_probe.stop_channel import StopChannel

HOOKS, PROBE = "hooks", "probe"
FIRST, WARMUP, MEASURE = "first", "warmup", "measure"


class Recorder:
    """The steps of one rank. Called from the thread that trains."""

    def __init__(self, settings: Settings, imported_at: float) -> None:
        """imported_at: when this process's own code began, by perf_counter."""
        self.settings = settings
        # False in child processes, and once the log is complete.
        self.active = True
        # Why the training ends here: StopTraining or Refused.
        self.ended: SystemExit | None = None
        self.method = HOOKS
        self.thread = threading.get_ident()
        self.steps = 0
        self.interval = Interval()
        # Where the block that is under way ends.
        self.block_end = 0
        # A batch is being waited for; what that reads from is not another one.
        self.pulling = False
        self.handed_out = HandedOut()
        # DataLoaders by their iterators, as ids; and those whose batches were trained on.
        self.loaders: dict[int, int] = {}
        self._training_loaders: set[int] = set()
        # Iterators whose batches were trained on; others are for evaluation.
        self._training_iterators: set[int] = set()
        # Counts of what could be a step, by name.
        self.seen: dict[str, int] = {}
        self.read_loss: Callable[[], float | None] = lambda: None
        # Start of the first step: when its data was asked for, or its backward pass began.
        self.first_began: float | None = None
        self._began = imported_at
        self._startup = facts.interpreter_seconds()
        self._log = EventLog(settings.events, settings.rank)
        self._stop_at: int | None = settings.last_step if settings.stop else None
        # What the stop channel's server says of the measurement, for the protocol event.
        self._outcome: dict[str, Any] = {}
        self._channel: StopChannel | None = None
        if settings.stop and settings.stop_channel:
            self._channel = StopChannel(settings.stop_channel, settings.token, settings.rank, self._stop_later)
        self._fence: Callable[[], bool] = lambda: False
        self._stepper: Any = None
        self._former: weakref.WeakSet[Any] = weakref.WeakSet()
        self._step_of: str | None = None
        self._measured = self._warmup = 0
        # Passes over the data that began.
        self._epochs = 1
        # Size of all batches but an epoch's last; and the iterator that handed out a smaller one.
        self._full_batch: int | None = None
        self._incomplete: int | None = None
        self._data: float | None = None
        self._left_out = 0.0
        self._gap_since: float | None = None
        self._open_block(perf_counter())

    # What the hooks tell.

    def sign(self, kind: str, of: Any) -> None:
        """Something that is not part of a training step begins."""
        if self.interval.new_sign(kind, of) and self.steps:
            self.begin_gap()

    def starts(self, loader: int) -> None:
        """A DataLoader starts from its first batch."""
        self._epochs += loader in self._training_loaders
        self.sign("iter", loader)

    def exhausted(self, iterator: int) -> None:
        """A DataLoader's iterator has no more batches."""
        self._incomplete = None
        self._training_iterators.discard(iterator)
        self.sign("exhausted", self.loaders.get(iterator, iterator))

    def batch(self, iterator: int, began: float, seconds: float, samples: int | None) -> None:
        """A DataLoader's iterator handed out a batch of so many samples, for which the training waited."""
        if not self.steps:
            self.first_began = began
        if self.interval.new_sign("pull", iterator) and iterator not in self._training_iterators:
            self.begin_gap()
        self.interval.add_batch(iterator, seconds, samples)
        if samples is not None and self.steps and (self._gap_since is None or self._incomplete == iterator):
            if self._full_batch is None:
                self._full_batch = samples
            if samples > self._full_batch or self._incomplete == iterator:
                self._full_batch = 0  # sizes vary, so a smaller one does not mean the end of an epoch
            self._incomplete = None
            if samples < self._full_batch:
                self._incomplete = iterator
                self.begin_gap()

    def begin_gap(self) -> None:
        """Leave the step that is under way out of its block."""
        if self._gap_since is not None or not self.steps:
            return
        at = self._last_end
        if self._last_end > self._segment and self._fence():
            at = perf_counter()
        self._seconds += at - self._segment
        self._issued += self._last_end - self._segment
        self._gap_since = at

    def step(self, name: str, stepper: Any = None, parameters: Any = None) -> None:
        """A training step ends.

        Args:
            stepper: The optimiser or function that stepped; several in turn are refused.
            parameters: Tensors that the optimiser updates.

        Raises:
            StopTraining: At the last step.
            Refused: If the training cannot be measured.
        """
        now = perf_counter()
        if self.ended is not None:  # raised before, and the user's code went on
            raise self.ended
        if stepper is not self._stepper:
            self._change_stepper(name, stepper)
        self.steps += 1
        if self.steps == 1:
            self._first_step(name, parameters)
            return
        if self._gap_since is not None:
            if self._fence():
                now = perf_counter()
            self._left_out += now - self._gap_since
            self._gap_since, self._segment = None, now
            self._train_on(*list(self.interval.batches)[-1:])
        else:
            self._n += 1
            if self.interval.data_seconds is not None:
                self._data = (self._data or 0.0) + self.interval.data_seconds
            self.handed_out.add(self.interval)
            self._train_on(*self.interval.batches)
        self._last_end = now
        self.interval.restart()
        if self.steps >= self.block_end or (self._stop_at is not None and self.steps >= self._stop_at):
            self._end_block(now)

    def _train_on(self, *iterators: int) -> None:
        self._training_iterators.update(iterators)
        self._training_loaders.update(self.loaders.get(iterator, iterator) for iterator in iterators)

    # Blocks.

    def _first_step(self, name: str, parameters: Any) -> None:
        """The first step is timed alone: it compiles and allocates."""
        self.thread = threading.get_ident()
        self._step_of = name
        self._fence = facts.fence(parameters)
        self._fence()
        now = perf_counter()
        began = self.first_began if self.first_began is not None else self._began
        startup = {**self._startup, "script": round(began - self._began, 6)}
        known = facts.start(parameters, self.settings.start)
        known.update(train_samples=None, startup_seconds=startup)
        # Known only now, but of before the first step.
        self._log.write("start", seconds_ago=perf_counter() - began, **{**self.settings.start, **known})
        self._check_world_size(known["world_size"], known["communication"])
        samples = self._samples(1)
        self._log.write("steps", phase=FIRST, step=0, n=1, seconds=now - began, samples=samples, loss=self.read_loss())
        self._report(1, now - began, FIRST)
        if self._phase == WARMUP:
            self._warmup += 1
        # What evaluates comes before what trains.
        self._train_on(*list(self.interval.batches)[-1:])
        self.interval.restart()
        if self._stop_at == 1:
            self._stop()
        self._open_block(perf_counter())

    def _open_block(self, now: float) -> None:
        settings, start = self.settings, self.steps
        self._phase = WARMUP if start < settings.warmup_steps else MEASURE
        last = settings.warmup_steps if self._phase == WARMUP else settings.last_step
        # The first step is timed alone, though the first block begins with it.
        end = 1 if not start else (0 if start == 1 < settings.block_steps else start) + settings.block_steps
        self._block_start, self.block_end = start, end if last is None or last <= start else min(end, last)
        self._n, self._seconds, self._issued = 0, 0.0, 0.0
        self._data = None
        self._segment = self._last_end = now

    def _end_block(self, now: float) -> None:
        issued = self._issued + now - self._segment
        end = perf_counter() if self._fence() else now
        seconds = self._seconds + end - self._segment
        if self._n:
            self._log.write(
                "steps",
                phase=self._phase,
                step=self._block_start,
                n=self._n,
                seconds=seconds,
                issue_seconds=issued,
                samples=self._samples(self._n),
                loss=self.read_loss(),
                data_seconds=self._data,
                left_out_seconds=self._left_out,
            )
            self._left_out = 0.0
        self._report(self._n, seconds, self._phase)
        if self._phase == WARMUP:
            self._warmup += self.steps - self._block_start
        else:
            self._measured += self._n
        if self.handed_out.enough and (self.settings.unit == "samples" or self.method == PROBE):
            self._check_samples()
        if self._stop_at is not None and self.steps >= self._stop_at:
            self._stop()
        self._open_block(perf_counter())

    def _samples(self, steps: int) -> int:
        return round(steps * self.settings.samples)

    def _report(self, n: int, seconds: float, phase: str) -> None:
        if self._channel is not None:
            self._channel.report(step=self.steps, n=n, seconds=seconds, phase=phase)

    # Ends.

    def _stop_later(self, step: int, outcome: dict[str, Any]) -> None:
        """Called in the stop channel's thread."""
        self._outcome = outcome
        self._stop_at = step if self.settings.last_step is None else min(step, self.settings.last_step)

    def _stop(self) -> None:
        self._finish("limit" if self._stop_at == self.settings.last_step else "precision")
        self.ended = StopTraining(0)
        exit_within_deadline(0)
        raise self.ended

    def script_ended(self) -> None:
        """The script came to its end by itself. Raises Refused if nothing was measured."""
        if not self.active:
            return
        if not self.steps:
            self.refuse(no_step(self.settings, self.seen))
        if not self._measured:
            least = self.settings.warmup_steps + self.settings.block_steps
            self.refuse(
                f"the script ended after {self.steps} steps, before a block was measured; it must take at least "
                f"{least}: let it train longer, or lower measure.warmup_steps or measure.block_steps"
            )
        self._finish("script ended")

    def _finish(self, stopped: str) -> None:
        settings, usual = self.settings, self.handed_out
        self._log.write(
            "workload",
            method=self.method,
            unit=settings.unit,
            step_of=self._step_of,
            seen=list(self.seen),
            handed_out=usual.samples(settings.samples),
            accumulation=usual.batches,
            epochs=self._epochs if self._training_loaders else None,
        )
        unknown = {"relative_half_width": None, "stationary": None}
        protocol = {**unknown, "precision": settings.precision, **self._outcome}
        protocol.update(stopped=stopped, warmup_steps=self._warmup, measured_steps=self._measured)
        self._log.write("protocol", **protocol)
        seen = self.steps * settings.samples_per_step
        counts = {"steps": self.steps, "samples_seen": seen, "samples": self._samples(self.steps)}
        self._log.write("end", **counts, weights_checksum=None)
        self._close()

    def _close(self) -> None:
        self.active = False
        self._log.close()

    def refuse(self, reason: str) -> NoReturn:
        """Say why the training cannot be measured, and end it."""
        print(f"error: {reason}", file=sys.stderr, flush=True)
        self._close()
        self.ended = Refused(1)
        exit_within_deadline(1)
        raise self.ended

    # Checks.

    def _change_stepper(self, name: str, stepper: Any) -> None:
        """Training may go on with another optimiser, but not alternate between several."""
        if stepper in self._former:
            others: list[str] = [f"{key} ({times} steps)" for key, times in self.seen.items()]
            self.refuse(
                f"several optimisers step in turn, so what one training step is cannot be known; seen: "
                f"{', '.join(others)}. Name the one whose step ends a training step, workload.step=<its class>, or a "
                "function that is called once in each, workload.step=<module>:<function>"
            )
        if self._stepper is not None:
            self._former.add(self._stepper)
        self._stepper = stepper

    def _check_world_size(self, world_size: int | None, library: str | None) -> None:
        expected = self.settings.world_size
        if world_size in (None, expected):
            return
        if world_size == 1:
            self.refuse(
                f"{expected} processes each train alone: no library for distributed training is initialised in the "
                "script. Let it use the RANK and WORLD_SIZE that it is given, as under torchrun "
                "(torch.distributed.init_process_group and DistributedDataParallel), or run it with gpus=1"
            )
        self.refuse(
            f"{library} sees a world of {world_size}, the run has {expected} processes: let the script take RANK and "
            "WORLD_SIZE from its environment, as under torchrun"
        )

    def _check_samples(self) -> None:
        given, expected = self.handed_out.samples(self.settings.samples), self.settings.samples
        if given is None or given == expected:
            return
        batches = self.handed_out.batches
        self.refuse(
            f"{given:g} {self.settings.unit} per step were handed out on this rank ({batches} batches), but "
            f"workload.samples_per_step={self.settings.samples_per_step} on {self.settings.world_size} ranks is "
            f"{expected:g}: set workload.samples_per_step to what all ranks together train on in one optimiser step, "
            "or let the script use {batch_per_gpu}"
        )


def no_step(settings: Settings, seen: dict[str, int]) -> str:
    """Why a script that ended showed no step."""
    if settings.step and seen:
        return (
            f"no step of workload.step={settings.step} was seen; seen were {', '.join(seen)}: name one of these, or a "
            "function as <module>:<function>"
        )
    if settings.step:
        return f"the script ended and workload.step={settings.step} was never called: check its name"
    if "torch" not in sys.modules:
        return (
            "the script ended and showed no training step; looked for optimisers of PyTorch, which it did not import: "
            "use scaling_probe.steps() in its loop, or workload.pattern for its output"
        )
    return (
        "the script ended and showed no training step: PyTorch was imported, but no optimiser stepped in this process "
        "(a replayed CUDA graph, a compiled step and child processes are not seen): name the function that takes one "
        "step, workload.step=<module>:<function>, or use scaling_probe.steps() in its loop"
    )
