"""The batches of a rank: the interface of input pipelines, and the NumPy one with a prefetching thread."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from typing import Any, Deque, Dict, Iterator, Optional, Tuple

import numpy as np

from harness.core.errors import DataError
from harness.worker.data.augment import augment
from harness.worker.data.sampling import Draw
from harness.worker.data.splits import Split

Batch = Tuple[np.ndarray, np.ndarray]


class Pipeline(ABC):
    """Endless training batches of one rank from a given step.

    A batch is images uint8 [L, H, W, C], or normalised float32 of that shape, and labels int64 [L], with L =
    global_batch / world; for text both are [L, tokens]. They are NumPy or framework arrays, on the host or the device,
    as accepted by the adapter's `to_device`, and belong to the consumer. `Draw` selects samples and augmentation for
    every pipeline.
    """

    def start(self) -> None:
        """Start what needs the framework; called once when the framework is up."""
        return

    def __iter__(self) -> Iterator[Any]:
        return self

    @abstractmethod
    def __next__(self) -> Any:
        """Raise DataError if samples cannot be read or their reader is gone."""

    @abstractmethod
    def close(self) -> None:
        """Stop producing batches; iteration then ends."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    @property
    def prefetch(self) -> int:
        """Largest known number of prefetched batches."""
        return 0

    def settle(self) -> None:
        """Wait until prefetching is complete and idle, as far as known."""
        return

    def facts(self) -> Dict[str, Any]:
        """Return the reader's own fields of the start event."""
        return {}


class Batches(Pipeline):
    """C-contiguous NumPy batches, prefetched by a thread; with prefetch=0, produced on request.

    An exception while producing a batch is raised when that batch is requested. Raises DataError if `prefetch` is
    negative or the ranks cannot share the global batch.
    """

    def __init__(self, split: Split, draw: Draw, first_step: int = 0, prefetch: int = 4) -> None:
        if prefetch < 0:
            raise DataError(f"prefetch {prefetch} is not possible; make 0 batches ahead, or more")
        self._split, self._draw, self._prefetch, self._step = split, draw, prefetch, first_step
        self._ready: Deque[Batch] = deque()
        self._error: Optional[BaseException] = None
        self._closed = False
        self._changed = threading.Condition()
        self._thread: Optional[threading.Thread] = None
        if prefetch:
            self._thread = threading.Thread(target=self._fill, args=(first_step,), name="prefetch", daemon=True)
            self._thread.start()

    def __next__(self) -> Batch:
        if not self._prefetch:
            return self._now()
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._error or self._closed)
            if self._closed:
                raise StopIteration
            if self._ready:
                batch = self._ready.popleft()
                self._changed.notify_all()
                return batch
            assert self._error is not None
            raise self._error

    def close(self) -> None:
        """Stop the thread, at the latest after its current batch, and drop prefetched batches."""
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    @property
    def prefetch(self) -> int:
        return self._prefetch

    def settle(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: len(self._ready) >= self._prefetch or self._error or self._closed)

    def _now(self) -> Batch:
        if self._closed:
            raise StopIteration
        batch = self._make(self._step)
        self._step += 1
        return batch

    def _fill(self, step: int) -> None:
        try:
            while self._wait_for_room():
                batch = self._make(step)
                step += 1
                with self._changed:
                    if not self._closed:
                        self._ready.append(batch)
                        self._changed.notify_all()
        except BaseException as error:  # re-raised in the consumer
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _wait_for_room(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._ready) < self._prefetch)
            return not self._closed

    def _make(self, step: int) -> Batch:
        images, labels = self._read(step)
        bits = self._draw.bits(step)
        if bits is not None:
            images = augment(images, bits, self._draw.crop_pixels, self._draw.crop_reflect)
        return np.ascontiguousarray(images), labels

    def _read(self, step: int) -> Batch:
        indices = self._draw.indices(step)
        return self._split.images(indices), self._split.targets(indices)


def evaluation_batches(split: Split, indices: np.ndarray, batch: int) -> Iterator[Batch]:
    """Yield the unmodified samples at `indices`, in order, `batch` at a time; the last batch may be smaller."""
    if batch < 1:
        raise DataError(f"an evaluation batch of {batch} samples is not possible; it needs at least 1")
    for start in range(0, len(indices), batch):
        chosen = indices[start : start + batch]
        yield np.ascontiguousarray(split.images(chosen)), split.targets(chosen)
