"""The last batch of each DataLoader, so that further steps can train on it again and wait for none."""

from __future__ import annotations

from typing import Any

# Iterators whose batch is kept; an abandoned one is never seen to end.
MOST = 4


class LastBatches:
    """Iterators are told apart by their ids. `repeats`: hand out the batches that are kept instead of new ones."""

    def __init__(self) -> None:
        self.repeats = False
        self._kept: dict[int, tuple[Any, int | None]] = {}

    def keep(self, iterator: int, batch: Any, samples: int | None) -> None:
        """Keep a batch, but not the incomplete one at the end of an epoch."""
        _, former = self._kept.get(iterator, (None, None))
        if former is None or samples is None or samples >= former:
            self._kept.pop(iterator, None)
            self._kept[iterator] = batch, samples
            if len(self._kept) > MOST:
                del self._kept[next(iter(self._kept))]

    def forget(self, iterator: int) -> None:
        self._kept.pop(iterator, None)

    def __contains__(self, iterator: int) -> bool:
        return iterator in self._kept

    def again(self, iterator: int) -> Any:
        """Return the batch of an iterator that is kept."""
        return self._kept[iterator][0]
