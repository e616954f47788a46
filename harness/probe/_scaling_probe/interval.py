"""What happens between the ends of two optimiser steps, and the batches that are handed out there."""

from __future__ import annotations

from collections import Counter
from typing import Any

# Iterators whose batch is kept; an abandoned one is never seen to end.
MOST_KEPT = 4


class Interval:
    """Observations since the last step: batches handed out, time waited for them, and signs of something else.

    A sign, such as `model.eval()` or a DataLoader that starts, shows that the time up to the next step is not only that
    of a training step, unless the same was seen in the interval before: then each step has it.
    """

    def __init__(self) -> None:
        self.signs: set[tuple[str, Any]] = set()
        self._before: set[tuple[str, Any]] = set()
        self.data_seconds: float | None = None
        # Batches and samples by DataLoader iterator, the latest last; samples is None if a batch's size is unknown.
        self.batches: dict[int, tuple[int, int | None]] = {}

    def new_sign(self, kind: str, of: Any) -> bool:
        """Add a sign. Returns whether it was seen neither in this interval nor in the one before."""
        sign = (kind, of)
        if sign in self.signs:
            return False
        self.signs.add(sign)
        return sign not in self._before

    def add_batch(self, iterator: int, seconds: float, samples: int | None) -> None:
        self.data_seconds = (self.data_seconds or 0.0) + seconds
        self.add_samples(iterator, samples)

    def add_samples(self, iterator: int, samples: int | None) -> None:
        count, total = self.batches.pop(iterator, (0, 0))
        self.batches[iterator] = (count + 1, None if samples is None or total is None else total + samples)

    def restart(self) -> None:
        self.signs, self._before = self._before, self.signs
        self.signs.clear()
        self.data_seconds = None
        self.batches = {}


class HandedOut:
    """Counts of the batches and samples that the DataLoaders handed out per step."""

    ENOUGH = 3

    def __init__(self) -> None:
        self._steps: list[dict[int, tuple[int, int | None]]] = []

    def add(self, interval: Interval) -> None:
        self._steps.append(interval.batches)

    @property
    def full(self) -> bool:
        """No more are needed."""
        return len(self._steps) >= 4 * self.ENOUGH

    @property
    def enough(self) -> bool:
        return len(self._steps) >= self.ENOUGH

    @property
    def batches(self) -> int | None:
        """Batches of one DataLoader per step: micro-batches with gradient accumulation. None: none seen."""
        return _usual([max(count for count, _ in step.values()) for step in self._steps if step])

    def samples(self, expected: float) -> float | None:
        """Samples per step. None: unknown, no DataLoader, or different in each step.

        Of several DataLoaders, those of the one that handed out what is expected, else of all. If many steps had no
        batch, the mean over all steps: what seems to be a step is then a part of one, or trains on a batch again.
        """
        totals: list[int] = []
        for step in self._steps:
            known = [samples for _, samples in step.values() if samples is not None]
            if step and len(known) == len(step):
                totals.append(int(expected) if expected in known else sum(known))
        empty = sum(not step for step in self._steps)
        if totals and empty > len(self._steps) / 4:
            return sum(totals) / len(self._steps)
        return _usual(totals)


class LastBatches:
    """The last batch of each DataLoader, so that further steps can train on it again and wait for none.

    Iterators are told apart by their ids. `repeats`: hand out the batches that are kept instead of new ones.
    """

    def __init__(self) -> None:
        self.repeats = False
        self._kept: dict[int, tuple[Any, int | None]] = {}

    def keep(self, iterator: int, batch: Any, samples: int | None) -> None:
        """Keep a batch, but not the incomplete one at the end of an epoch."""
        _, former = self._kept.get(iterator, (None, None))
        if former is None or samples is None or samples >= former:
            self._kept.pop(iterator, None)
            self._kept[iterator] = batch, samples
            if len(self._kept) > MOST_KEPT:
                del self._kept[next(iter(self._kept))]

    def forget(self, iterator: int) -> None:
        self._kept.pop(iterator, None)

    def __contains__(self, iterator: int) -> bool:
        return iterator in self._kept

    def again(self, iterator: int) -> Any:
        """Return the batch of an iterator that is kept."""
        return self._kept[iterator][0]


def _usual(values: list[int]) -> int | None:
    """The value of most steps."""
    if not values:
        return None
    value, times = Counter(values).most_common(1)[0]
    return value if 2 * times > len(values) else None
