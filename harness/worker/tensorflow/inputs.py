"""TensorFlow's input pipeline: tf.data with vectorised maps over whole batches, as its performance guide recommends."""

from __future__ import annotations

from typing import Any, Iterator, Optional, Tuple

import numpy as np
import tensorflow as tf

from harness.core.errors import DataError
from harness.core.spec import FRAMEWORK, RunSpec
from harness.worker.data.augment import choices
from harness.worker.data.batches import Pipeline
from harness.worker.data.sampling import Draw
from harness.worker.data.splits import Split

Batch = Tuple[tf.Tensor, tf.Tensor]


class TfDataBatches(Pipeline):
    """A generator yields sample indices; a parallel map reads and augments them; batches are prefetched.

    Uses a private thread pool: TensorFlow's threads, possibly one per rank, belong to training.
    """

    def __init__(self, spec: RunSpec, split: Split, draw: Draw, first_step: int) -> None:
        self._split, self._draw, self._first_step = split, draw, first_step
        self._workers, self._ahead = spec.data.workers, spec.data.workers * spec.data.prefetch
        self._iterator: Optional[Iterator[Batch]] = None

    def start(self) -> None:
        # Not earlier: using TensorFlow would fix its settings.
        chosen = tuple(tf.TensorSpec([None], kind) for kind in (tf.int64, tf.int64, tf.int64, tf.bool))
        parallel = {"num_parallel_calls": self._workers} if self._workers else {}
        options = tf.data.Options()
        options.autotune.enabled = False
        options.deterministic = True
        options.threading.private_threadpool_size = max(1, self._workers)
        with tf.device("CPU:0"):
            batches = tf.data.Dataset.from_generator(self._choices, output_signature=chosen).map(self._make, **parallel)
            if self._ahead:
                batches = batches.prefetch(self._ahead)
            self._iterator = iter(batches.with_options(options))

    def __next__(self) -> Batch:
        if self._iterator is None:
            raise StopIteration
        try:
            images, labels = next(self._iterator)
        except tf.errors.OpError as error:
            _, found, message = str(error.message).partition("DataError: ")
            if not found:
                raise
            raise DataError(message.splitlines()[0]) from None
        return images, labels

    def close(self) -> None:
        self._iterator = None

    def _choices(self) -> Iterator[Tuple[np.ndarray, ...]]:
        """Yield (indices, row, column, flipped) of each step; without augmentation the last three are empty."""
        for indices, bits in self._draw.steps(self._first_step):
            yield (indices, *choices(np.zeros(0, np.uint64) if bits is None else bits, self._draw.crop_pixels))

    def _make(self, indices: tf.Tensor, rows: tf.Tensor, columns: tf.Tensor, flipped: tf.Tensor) -> Any:
        images = tf.numpy_function(self._split.images, [indices], tf.uint8)
        labels = tf.numpy_function(self._split.targets, [indices], tf.int64)
        images.set_shape([self._draw.size, *self._split.image_shape])
        labels.set_shape([self._draw.size])
        if not self._draw.augmented:
            return images, labels
        return augmented(images, self._draw.crop_pixels, self._draw.crop_reflect, rows, columns, flipped), labels


def augmented(
    images: tf.Tensor, pixels: int, reflect: bool, rows: tf.Tensor, columns: tf.Tensor, flipped: tf.Tensor
) -> tf.Tensor:
    """Do what harness.worker.data.augment.augment does to images uint8 [n, H, W, C], in TensorFlow."""
    _, height, width, _ = images.shape
    around = [[0, 0], [pixels, pixels], [pixels, pixels], [0, 0]]
    padded = tf.pad(images, around, mode="REFLECT" if reflect else "CONSTANT")
    y = rows[:, None] + tf.range(height, dtype=tf.int64)
    x = columns[:, None] + tf.range(width, dtype=tf.int64)
    x = tf.where(flipped[:, None], x[:, ::-1], x)
    return tf.gather(tf.gather(padded, y, batch_dims=1), x, axis=2, batch_dims=1)


PIPELINES = {FRAMEWORK: TfDataBatches}
