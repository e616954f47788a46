"""Batches of a rank, made ahead of time by a background thread."""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType
from typing import Deque, Iterator, Optional, Tuple, Type

import numpy as np

from harness.spec import DatasetSpec
from harness.worker.data.augment import augment
from harness.worker.data.bits import AUGMENTATION, random_bits
from harness.worker.data.errors import DataError
from harness.worker.data.sharding import SampleOrder, rank_batch_size
from harness.worker.data.splits import Split

Batch = Tuple[np.ndarray, np.ndarray]


class Batches:
    """The training batches of one rank from step `first_step` on, without end.

    A batch is images uint8 [L, H, W, C], C-contiguous, and labels int64 [L], with L = global_batch / world, or of text
    both [L, tokens]; they are the consumer's to keep. Augmented when `spec.augment`: the random numbers are drawn for
    the whole global batch from (seed, step), and the rank takes its slice, so that they do not depend on the number of
    ranks either.

    prefetch: most batches made ahead. What goes wrong while a batch is made is raised, as the same exception, when
    that batch is asked for. After `close()` the iterator ends.
    Raises DataError where `prefetch` is below 1, or the ranks cannot share the global batch.
    """

    def __init__(
        self,
        split: Split,
        order: SampleOrder,
        spec: DatasetSpec,
        global_batch: int,
        rank: int,
        world: int,
        seed: int,
        first_step: int = 0,
        prefetch: int = 4,
    ) -> None:
        assert order.samples == len(split), (order.samples, len(split))
        if prefetch < 1:
            raise DataError(f"prefetch {prefetch} is not possible; make at least 1 batch ahead")
        self._size = rank_batch_size(rank, world, global_batch)
        self._split, self._order, self._augment, self._seed = split, order, spec.augment, seed
        self._rank, self._world, self._global_batch = rank, world, global_batch
        self._prefetch = prefetch
        self._ready: Deque[Batch] = deque()
        self._error: Optional[BaseException] = None
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._fill, args=(first_step,), name="prefetch", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
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
        """Ends the thread, at the latest after the batch it is making, and drops what was made ahead."""
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()
        self._thread.join()

    def __enter__(self) -> Batches:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def _fill(self, step: int) -> None:
        try:
            while self._wait_for_room():
                batch = self._make(step)
                step += 1
                with self._changed:
                    if not self._closed:
                        self._ready.append(batch)
                        self._changed.notify_all()
        except BaseException as error:  # handed to the consumer, whatever it is
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _wait_for_room(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or len(self._ready) < self._prefetch)
            return not self._closed

    def _make(self, step: int) -> Batch:
        indices = self._order.rank_batch(step, self._rank, self._world, self._global_batch)
        images = self._split.images(indices)
        if self._augment:
            bits = random_bits(self._global_batch, AUGMENTATION, self._seed, step)
            images = augment(images, bits[self._rank * self._size : (self._rank + 1) * self._size])
        return np.ascontiguousarray(images), self._split.targets(indices)


def evaluation_batches(split: Split, indices: np.ndarray, batch: int) -> Iterator[Batch]:
    """The samples at `indices`, in order and as they are, `batch` at a time; the last batch may be smaller."""
    if batch < 1:
        raise DataError(f"an evaluation batch of {batch} samples is not possible; it needs at least 1")
    for start in range(0, len(indices), batch):
        chosen = indices[start : start + batch]
        yield np.ascontiguousarray(split.images(chosen)), split.targets(chosen)
