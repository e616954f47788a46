"""Further steps of the script after the timed ones: a trace, and steps without synchronisation (docs/breakdown.md).

All ranks stop at the same step and take the same further steps, so that no collective of the script is left alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from time import perf_counter
from typing import TYPE_CHECKING

from _scaling_probe.ending import exit_now
from _scaling_probe.torch_parallel import NO_DDP, NO_TORCH
from _scaling_probe.tracing import traced

if TYPE_CHECKING:
    from _scaling_probe.recorder import Recorder
    from _scaling_probe.settings import Further

CACHED, NO_SYNC = "cached_batch", "no_sync"
# A step that takes longer, and longer than this many usual ones, is waiting for a rank that has left.
LONGEST_SECONDS, LONGEST_STEPS = 60.0, 50


class FurtherSteps:
    """Steps on the same batch, with and without synchronisation: in rounds of one block each, the order alternating.

    disturbed: something else than training steps was seen, such as an evaluation.
    """

    def __init__(self, recorder: Recorder, asked: Further, run_seconds: float, step_seconds: float) -> None:
        """run_seconds: since the process began. step_seconds: of a timed step."""
        self.disturbed = False
        self._recorder, self._parallel = recorder, recorder.parallel
        self._asked = asked
        self._seconds = run_seconds, step_seconds
        self._begun = self._latest = perf_counter()
        self._steps = self._taken()
        self._rounds = 0
        self._so_far = run_seconds
        self._skipped: str | None = None
        self._ending = threading.Lock()
        threading.Thread(target=self._watch, name="scaling-probe-watch", daemon=True).start()

    def step(self) -> None:
        """A step of the script ended. Raises StopTraining after the last."""
        self._latest = perf_counter()
        try:
            next(self._steps)
        except StopIteration:
            self.end()
        except Exception as error:
            self.end(f"{type(error).__name__}: {error}")
        self._recorder.raise_end()

    def end(self, reason: str | None = None) -> None:
        """Log what was measured; the training ends here. reason: why there are no more rounds."""
        recorder = self._recorder
        with self._ending:
            if recorder.ended is not None:
                return
            skipped = self._skipped if reason is None else f"the further steps ended early: {_short(reason)}"
            seconds = perf_counter() - self._begun
            share, limit = seconds / self._so_far, self._asked.limit
            if self._asked.steps:
                recorder.log.write(
                    "probes", rounds=self._rounds, seconds=seconds, share=share, limit=limit, skipped=skipped
                )
            recorder.leave()

    def _taken(self) -> Iterator[None]:
        """Each item is one step of the script."""
        parallel, asked = self._parallel, self._asked
        if not parallel.known:
            self._skipped = NO_TORCH
            return
        if self._recorder.settings.world_size > 1 and not parallel.connected:
            self._skipped = NO_DDP  # another library connects the ranks, such as Horovod
            return
        self._so_far, step_seconds = self._of_first_rank(*self._seconds)
        if asked.trace:
            yield from traced(self._recorder, asked.trace, step_seconds, asked.limit * self._so_far)
        if asked.steps:
            self._skipped = parallel.why_inseparable()
            if self._skipped is None:
                yield from self._in_rounds(step_seconds)

    def _in_rounds(self, step_seconds: float) -> Iterator[None]:
        """Steps with and without synchronisation."""
        recorder, parallel, asked = self._recorder, self._parallel, self._asked
        begun, limit = perf_counter(), asked.limit * self._so_far
        round_seconds = 2 * (1 + asked.steps) * step_seconds
        if 2 * step_seconds + round_seconds > limit:
            self._skipped = _too_long(f"one round would take about {round_seconds:.3g} s", limit, asked.limit)
            return
        recorder.last_batches.repeats = True
        kinds = [CACHED, NO_SYNC]
        for kind in kinds:  # a compiled model compiles again
            parallel.synchronise(kind == CACHED)
            yield
        recorder.fence()
        (before,) = self._of_first_rank(perf_counter() - begun)
        if before + round_seconds > limit:
            self._skipped = _too_long(f"the first step of each kind took {before:.3g} s", limit, asked.limit)
        disturbed = 0
        while self._rounds < asked.rounds and before + round_seconds <= limit:
            self.disturbed, blocks = False, []
            for kind in kinds:
                parallel.synchronise(kind == CACHED)
                yield
                recorder.fence()
                parallel.sum([0.0])  # ranks begin together
                began = perf_counter()
                for _ in range(asked.steps):
                    yield
                recorder.fence()
                blocks.append((kind, perf_counter() - began))
            kinds.reverse()
            (ranks,) = parallel.sum([float(self.disturbed)])
            if ranks:
                disturbed += 1
            else:
                for kind, seconds in blocks:
                    recorder.log.write("probe", probe=kind, round=self._rounds, n=asked.steps, seconds=seconds)
                self._rounds += 1
            (now,) = self._of_first_rank(perf_counter() - begun)
            round_seconds, before = max(round_seconds if self._rounds + disturbed > 1 else 0.0, now - before), now
        if disturbed and not self._rounds:
            self._skipped = "an evaluation, a checkpoint or another epoch came between the further steps of each round"

    def _of_first_rank(self, *values: float) -> list[float]:
        first = self._recorder.settings.rank == 0
        return self._parallel.sum([value if first else 0.0 for value in values])

    def _watch(self) -> None:
        """A rank that has left must not keep this one."""
        longest = max(LONGEST_SECONDS, LONGEST_STEPS * self._seconds[1])
        while self._recorder.ended is None:
            if perf_counter() - self._latest > longest:
                self.end(f"no step ended for {longest:.0f} s")
                exit_now(0)
            time.sleep(1.0)


def begin(recorder: Recorder, run_seconds: float, step_seconds: float | None) -> FurtherSteps | None:
    """None if no further steps are asked for."""
    asked = recorder.settings.further
    return None if asked is None or step_seconds is None else FurtherSteps(recorder, asked, run_seconds, step_seconds)


def _too_long(what: str, limit: float, share: float) -> str:
    return f"{what}, and the limit is {limit:.3g} s (workload.probe_limit={share:g})"


def _short(text: str) -> str:
    return " ".join(text.split())[:200]
