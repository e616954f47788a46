"""Decide which block of steps comes next and when to stop (docs/method.md).

The decision depends only on the block times of all ranks, so that all ranks agree.
"""

from __future__ import annotations

from statistics import median
from typing import Any, Dict, List, Mapping, NamedTuple, Optional

from harness.core.measuring.precision import is_known, mean_error
from harness.core.measuring.steady_state import is_stationary
from harness.core.spec import MeasureSpec

FIRST, WARMUP, REWARM, MEASURE = "first", "warmup", "rewarm", "measure"


class Block(NamedTuple):
    """Steps timed together: `n` steps starting at `step`."""

    phase: str
    step: int
    n: int


class Protocol:
    """Warm-up, then timed blocks, of one attempt.

    first_step: the end of an earlier attempt's last saved block, else 0. A resumed attempt warms up again, and only its
    own blocks decide when it ends, at the latest where an uninterrupted run would have. ended: the outcome in the
    checkpoint, if training had ended already.
    """

    def __init__(self, measure: MeasureSpec, first_step: int, ended: Optional[Mapping[str, Any]] = None) -> None:
        self.measure, self.first_step, self.step = measure, first_step, first_step
        self.ended = ended
        # Seconds per step of each block, on the slowest rank.
        self.warm: List[float] = []
        self.timed: List[float] = []
        self.warmup_steps = self.measured_steps = 0
        self._known = False

    @property
    def going(self) -> bool:
        """There is another block to run."""
        return self.ended is None and self.step < self.measure.most_steps and self._stopped is None

    @property
    def block(self) -> Block:
        """The next block."""
        measure, start = self.measure, self.step
        last = measure.most_steps
        if start < measure.warmup_steps:
            last = measure.warmup_steps
        elif self._warming and not measure.fixed:
            last = min(last, self.first_step + measure.most_warmup_steps)
        elif not measure.fixed:
            last = min(last, start + measure.steps - self.measured_steps)
        phase = MEASURE
        if self._warming:
            phase = REWARM if self.first_step and start >= measure.warmup_steps else WARMUP
        return Block(phase, start, min(measure.block_steps, last - start))

    @property
    def parts(self) -> List[Block]:
        """The next block as it is timed: an attempt's first step, which compiles, is timed alone."""
        phase, start, n = self.block
        if start > self.first_step:
            return [self.block]
        return [Block(FIRST, start, 1)] + ([Block(phase, start + 1, n - 1)] if n > 1 else [])

    def add(self, step_seconds: float) -> None:
        """Record a finished block. step_seconds: mean of its last part on the slowest rank; ignored if that is the
        attempt's first step."""
        phase, _, n = self.block
        of_the_first = self.parts[-1].phase == FIRST
        if not of_the_first:
            (self.timed if phase == MEASURE else self.warm).append(step_seconds)
        if phase == MEASURE:
            self.measured_steps += n - (self.step == self.first_step)
        else:
            self.warmup_steps += n
        self.step += n
        if self.measure.precision is not None:
            self._known = is_known(self.timed, self.measure.precision, last=self._at_limit)

    @property
    def step_seconds(self) -> Optional[float]:
        """Median of the timed blocks; None if there are none."""
        return median(self.timed) if self.timed else None

    def outcome(self) -> Dict[str, Any]:
        """Return the attempt's protocol event, once `going` is False."""
        if self.ended is not None:
            return dict(self.ended)
        error = mean_error(self.timed)
        return {
            "stopped": self._stopped or "limit",
            "relative_half_width": None if error is None else error.half_width,
            "precision": self.measure.precision,
            "warmup_steps": self.warmup_steps,
            "stationary": is_stationary(self.warm) if self.measure.warms_until_stationary else None,
            "measured_steps": self.measured_steps,
        }

    @property
    def _warming(self) -> bool:
        taken = self.step - self.first_step
        if taken < self.measure.warmup_steps:
            return True
        return taken < self.measure.most_warmup_steps and not self.timed and not is_stationary(self.warm)

    @property
    def _stopped(self) -> Optional[str]:
        """The reason why the attempt stopped; None if there is another block."""
        if self._known:
            return "precision"
        return "limit" if self._at_limit else None

    @property
    def _at_limit(self) -> bool:
        measure = self.measure
        if self.step >= measure.most_steps:
            return True
        return not measure.fixed and self.measured_steps >= measure.steps
