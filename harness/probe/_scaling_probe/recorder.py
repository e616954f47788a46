"""Times blocks of steps and writes the rank's event log, whatever it is that tells it of the steps.

Fences only at the ends of blocks and around what is left out, so the training is not slowed down.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable
from time import perf_counter
from typing import Any, NoReturn

from _scaling_probe import facts, refusals
from _scaling_probe.ending import Refused, StopTraining, exit_within_deadline
from _scaling_probe.further_steps import FurtherSteps, begin
from _scaling_probe.interval import HandedOut, Interval, LastBatches
from _scaling_probe.log import EventLog
from _scaling_probe.settings import Settings
from _scaling_probe.stop_channel import StopChannel
from _scaling_probe.torch_parallel import TorchParallel

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
        # Ends the training after this step as the library that runs it does; None: by an exception.
        self.stop_library: Callable[[], None] | None = None
        self.method = HOOKS
        self.thread = threading.get_ident()
        self.steps = 0
        self.interval = Interval()
        # Where the block that is under way ends.
        self.block_end = 0
        # A batch is being waited for; what that reads from is not another one.
        self.pulling = False
        self.handed_out = HandedOut()
        self._samples_checked = False
        self.last_batches = LastBatches()
        self.parallel = TorchParallel()
        # Steps after the timed ones.
        self.further: FurtherSteps | None = None
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
        self.log = EventLog(settings.events, settings.rank)
        self._stop_at: int | None = settings.last_step if settings.stop else None
        # What the stop channel's server says of the measurement, for the protocol event.
        self._outcome: dict[str, Any] = {}
        self._channel: StopChannel | None = None
        if settings.stop and settings.stop_channel:
            self._channel = StopChannel(settings.stop_channel, settings.token, settings.rank, self._stop_later)
        self.fence: Callable[[], bool] = lambda: False
        self._stepper: Any = None
        self._former: weakref.WeakSet[Any] = weakref.WeakSet()
        self._step_of: str | None = None
        self._measured = self._warmup = 0
        self._measured_seconds = 0.0
        # Passes over the data that began.
        self._epochs = 1
        # Size of all batches but an epoch's last; and the iterator that handed out a smaller one.
        self._full_batch: int | None = None
        self._incomplete: int | None = None
        self._data: float | None = None
        self._left_out = 0.0
        self._gap_since: float | None = None
        self._segment = self._last_end = perf_counter()
        self._open_block(self._segment)

    # What the hooks tell.

    def sign(self, kind: str, of: Any) -> None:
        """Something that is not part of a training step begins."""
        if self.further is not None and kind == "save":  # of weights that the further steps have changed
            self.further.end("the script saves a checkpoint")
            raise StopTraining(0)
        if self.interval.new_sign(kind, of) and self.steps:
            self.begin_gap()

    def starts(self, loader: int) -> None:
        """A DataLoader starts from its first batch."""
        self._epochs += loader in self._training_loaders
        self.sign("iter", loader)

    def began(self, iterator: int, loader: int) -> None:
        """It has an iterator now, whose id another one may have had."""
        self.loaders[iterator] = loader
        self._training_iterators.discard(iterator)
        self.last_batches.forget(iterator)

    def repeats(self, iterator: int) -> bool:
        """The iterator's last batch is trained on again. Those of an evaluation must come to their end."""
        kept = self.last_batches
        return kept.repeats and iterator in self._training_iterators and iterator in kept

    def exhausted(self, iterator: int) -> None:
        """A DataLoader's iterator has no more batches."""
        self.last_batches.forget(iterator)
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
        if self.further is not None:
            self.further.disturbed = True
        if self._gap_since is not None or not self.steps or self.further is not None:
            return
        at = self._last_end
        if self._last_end > self._segment and self.fence():
            at = perf_counter()
        self._seconds += at - self._segment
        self._issued += self._last_end - self._segment
        self._gap_since = at

    def saving(self, owner: Any, name: str) -> None:
        """Leave calls of this function, which saves a checkpoint, out of the step in which they are; unless each step
        has one. What comes before it in the step is left out too, such as gathering what is saved."""
        function = getattr(owner, name)

        @functools.wraps(function)
        def save(*args: Any, **kwargs: Any) -> Any:
            if not self.active or self.thread != threading.get_ident() or self._gap_since is not None:
                return function(*args, **kwargs)
            self.sign("save", name)
            try:
                return function(*args, **kwargs)
            finally:
                if self._gap_since is not None:
                    now = perf_counter()
                    self._left_out += now - self._gap_since
                    self._gap_since, self._segment, self._last_end = None, now, now
                    self.interval.data_seconds = self.interval.data_seconds and 0.0

        setattr(owner, name, save)

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
        if self.further is not None:
            self._train_on(*list(self.interval.batches)[-1:])
            self.interval.restart()
            self.further.step()
            return
        if stepper is not self._stepper:
            self._change_stepper(name, stepper)
        self.steps += 1
        if self.steps == 1:
            self._first_step(name, parameters)
            return
        if self._gap_since is not None:
            if self.fence():
                now = perf_counter()
            self._left_out += now - self._gap_since
            self._gap_since, self._segment = None, now
            self._train_on(*list(self.interval.batches)[-1:])
        else:
            self._n += 1
            interval = self.interval
            if interval.data_seconds is not None:
                self._data = (self._data or 0.0) + interval.data_seconds
            if not self.handed_out.full:
                self.handed_out.add(interval)
            if not interval.batches.keys() <= self._training_iterators:
                self._train_on(*interval.batches)
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
        self.fence = facts.fence(parameters)
        if parameters is not None:
            self.parallel.updates(parameters)
        self.fence()
        now = perf_counter()
        began = self.first_began if self.first_began is not None else self._began
        startup = {**self._startup, "script": round(began - self._began, 6)}
        known = facts.start(parameters, self.settings.start)
        known.update(train_samples=None, startup_seconds=startup)
        # Known only now, but of before the first step.
        self.log.write("start", seconds_ago=perf_counter() - began, **{**self.settings.start, **known})
        self._check(refusals.wrong_world_size(self.settings, known["world_size"], known["communication"]))
        self._check(refusals.other_replicas(self.settings, known["device"]))
        samples = self._samples(1)
        self.log.write("steps", phase=FIRST, step=0, n=1, seconds=now - began, samples=samples, loss=self.read_loss())
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
        end = perf_counter() if self.fence() else now
        seconds = self._seconds + end - self._segment
        left_out = self._left_out
        if self._n:
            self.log.write(
                "steps",
                phase=self._phase,
                step=self._block_start,
                n=self._n,
                seconds=seconds,
                issue_seconds=issued,
                samples=self._samples(self._n),
                loss=self.read_loss(),
                data_seconds=self._data,
                left_out_seconds=left_out,
            )
            self._left_out = 0.0
        self._report(self._n, seconds, self._phase, left_out)
        if self._phase == WARMUP:
            self._warmup += self.steps - self._block_start
        else:
            self._measured += self._n
            self._measured_seconds += seconds
        if self.handed_out.enough and not self._samples_checked:
            self._samples_checked = self.handed_out.full
            if self.settings.unit == "samples" or self.method == PROBE:
                self._check(refusals.other_samples(self.settings, self.handed_out))
        if self._stop_at is not None and self.steps >= self._stop_at:
            self._stop()
        self._open_block(perf_counter())

    def _samples(self, steps: int) -> int:
        return round(steps * self.settings.samples)

    def _report(self, n: int, seconds: float, phase: str, left_out: float = 0.0) -> None:
        if self._channel is not None:
            self._channel.report(step=self.steps, n=n, seconds=seconds, phase=phase, left_out=left_out)

    # Ends.

    def _stop_later(self, step: int, outcome: dict[str, Any]) -> None:
        """Called in the stop channel's thread."""
        self._outcome = outcome
        self._stop_at = step if self.settings.last_step is None else min(step, self.settings.last_step)

    def _stop(self) -> None:
        self._write_outcome("limit" if self._stop_at == self.settings.last_step else "precision")
        seconds = self._measured_seconds / self._measured if self._measured else None
        self.further = begin(self, perf_counter() - self._began, seconds)
        if self.further is None:
            self.leave()
            self.raise_end()
        else:
            self.further.step()

    def leave(self) -> None:
        """Nothing more is measured; the training ends here."""
        self._write_end()
        self.ended = StopTraining(0)
        exit_within_deadline(0)

    def raise_end(self) -> None:
        """End the training where it is, unless the library that runs it does so after this step."""
        if self.stop_library is not None and isinstance(self.ended, StopTraining):
            self.stop_library()
        elif self.ended is not None:
            raise self.ended

    def broke_off(self, reason: str) -> None:
        """The script ends; if everything was measured before, that is no failure."""
        if self.further is not None:
            self.further.end(reason)

    def script_ended(self) -> None:
        """The script came to its end by itself. Raises Refused if nothing was measured."""
        self.broke_off("the script came to its end")
        if not self.active:
            return
        if not self.steps:
            self.refuse(refusals.no_step(self.settings, self.seen))
        if not self._measured:
            self.refuse(refusals.too_few_steps(self.settings, self.steps))
        self._write_outcome("script ended")
        self._write_end()

    def _write_outcome(self, stopped: str) -> None:
        settings, usual = self.settings, self.handed_out
        self.log.write(
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
        self.log.write("protocol", **protocol)

    def _write_end(self) -> None:
        seen = self.steps * self.settings.samples_per_step
        counts = {"steps": self.steps, "samples_seen": seen, "samples": self._samples(self.steps)}
        self.log.write("end", **counts, weights_checksum=None)
        self._close()

    def _close(self) -> None:
        self.active = False
        self.log.close()

    def refuse(self, reason: str) -> NoReturn:
        """Say why the training cannot be measured, and end it."""
        print(f"error: {reason}", file=sys.stderr, flush=True)
        self._close()
        self.ended = Refused(1)
        exit_within_deadline(1)
        raise self.ended

    def _check(self, reason: str | None) -> None:
        if reason is not None:
            self.refuse(reason)

    def _change_stepper(self, name: str, stepper: Any) -> None:
        """Training may go on with another optimiser, but not alternate between several."""
        if stepper in self._former:
            self.refuse(refusals.several_optimisers(self.seen))
        if self._stepper is not None:
            self._former.add(self._stepper)
        self._stepper = stepper
