"""Read a rank's share of a sharded data set (harness/core/shards.py) through a shuffle buffer.

Each epoch shuffles the rank's shards, by (seed, rank, epoch), and cuts the sequence of their samples into windows as
long as the buffer. A window is emitted in random order, and as its samples leave the buffer those of the next window
take their places, read sequentially. So the order depends only on (seed, rank, number of ranks, buffer), any position
can be computed, and memory is bounded by `buffer` samples, one piece of PIECE_BYTES and the labels of one shard.

Epochs are per rank: a rank with fewer samples starts its next epoch earlier.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from harness.core.errors import DataError
from harness.core.shards import Shard, read_index, share
from harness.core.spec import DatasetSpec
from harness.worker.data.batches import Batch, Batches
from harness.worker.data.bits import SHARD_ORDER, WINDOW_ORDER, random_bits
from harness.worker.data.sampling import Draw
from harness.worker.data.splits import Split

PIECE_BYTES = 2**20


class ShardedSplit(Split):
    """One part of a sharded data set. Images are read on demand, labels all at once on first use, which training
    avoids."""

    def __init__(self, folder: Path, shards: Sequence[Shard], sample_shape: Tuple[int, ...], classes: int) -> None:
        self.folder, self.shards, self.classes = folder, tuple(shards), classes
        self.image_shape = sample_shape
        # The labels of text are the next tokens.
        is_text = len(sample_shape) == 1
        self.label_shape: Tuple[int, ...] = sample_shape if is_text else ()
        self.label_type = "uint8" if is_text else "int64"
        self.ends = np.cumsum([shard.samples for shard in self.shards])

    def __len__(self) -> int:
        return int(self.ends[-1])

    @cached_property
    def labels(self) -> np.ndarray:  # type: ignore[override]
        return np.concatenate([read_labels(self, shard) for shard in self.shards])

    def images(self, indices: np.ndarray) -> np.ndarray:
        out = np.empty((len(indices), *self.image_shape), np.uint8)
        of = np.searchsorted(self.ends, indices, side="right")
        for number in np.unique(of):
            shard, chosen = self.shards[number], of == number
            out[chosen] = open_samples(self, shard)[indices[chosen] - (self.ends[number] - shard.samples)]
        return out


def open_shards(folder: Path) -> Tuple[ShardedSplit, ShardedSplit]:
    """Return the training and the test split. Raises DataError."""
    index = read_index(folder)
    train, test = (ShardedSplit(folder, part, index.sample_shape, index.classes) for part in (index.train, index.test))
    return train, test


def training_batches(
    train: Split,
    spec: DatasetSpec,
    global_batch: int,
    rank: int,
    world: int,
    seed: int,
    first_step: int = 0,
    prefetch: int = 4,
) -> Batches:
    """Return the batches of one rank: from its share of the shards, or its slices of the common order."""
    kind = StreamedBatches if isinstance(train, ShardedSplit) else Batches
    return kind(train, Draw(len(train), spec, global_batch, rank, world, seed), first_step, prefetch)


class StreamedBatches(Batches):
    """Like `Batches`, from the rank's share of the shards. Raises DataError if there are fewer shards than ranks."""

    def __init__(self, split: Split, draw: Draw, first_step: int = 0, prefetch: int = 4) -> None:
        assert isinstance(split, ShardedSplit), split
        shards = share(split.shards, draw.rank, draw.world)
        self.stream = ShardStream(split, shards, draw.rank, draw.size, draw.shuffle_buffer, draw.seed)
        super().__init__(split, draw, first_step, prefetch)

    def _read(self, step: int) -> Batch:
        return self.stream.batch(step)

    def facts(self) -> Dict[str, Any]:
        own = self.stream
        return {"stream": {"shards": len(own.shards), "samples": own.samples, "buffer_samples": len(own.images)}}


class ShardStream:
    """Endless samples of one rank's shards. Not thread-safe."""

    def __init__(
        self, split: ShardedSplit, shards: Sequence[Shard], rank: int, size: int, buffer: int, seed: int
    ) -> None:
        """size: samples per step. buffer: largest number of buffered samples. Raises DataError if it is below 1."""
        if buffer < 1:
            raise DataError(
                f"a shuffle buffer of {buffer} samples is not possible; use at least 1 (data.shuffle_buffer)"
            )
        self.split, self.shards, self.rank, self.size, self.seed = split, tuple(shards), rank, size, seed
        self.samples = sum(shard.samples for shard in self.shards)
        self.buffer = min(buffer, self.samples)
        self.images = np.empty((self.buffer, *split.image_shape), np.uint8)
        self.labels = np.empty((self.buffer, *split.label_shape), split.label_type)
        self.open: Optional[OpenShard] = None
        self.next_step: Optional[int] = None

    def batch(self, step: int) -> Batch:
        """Return the batch of `step` (from 0); fast for consecutive steps. Raises DataError if a shard cannot be
        read."""
        if step != self.next_step:
            self._seek(step * self.size)
        images = np.empty((self.size, *self.split.image_shape), np.uint8)
        labels = np.empty((self.size, *self.split.label_shape), np.int64)
        done = 0
        while done < self.size:
            if self.given == len(self.order):
                self._next_window()
            slots = self.slots[self.order[self.given : self.given + self.size - done]]
            part = slice(done, done + len(slots))
            images[part], labels[part] = self.images[slots], self.labels[slots]
            self._leave(slots)
            done += len(slots)
        self.next_step = step + 1
        return images, labels

    def _seek(self, position: int) -> None:
        """Position the stream: read the sample's window and what the buffer would contain of the next one."""
        epoch, offset = divmod(position, self.samples)
        self.source = self._windows(epoch, offset // self.buffer)
        self.free = np.arange(self.buffer)
        self._take_window()
        self._next_window()
        self._leave(self.slots[self.order[: offset % self.buffer]])

    def _next_window(self) -> None:
        """Read the rest of the coming window and start to emit it."""
        self._fill(len(self.coming) - self.filled)
        self.slots, self.order, self.given = self.coming, self.coming_order, 0
        self._take_window()

    def _take_window(self) -> None:
        self.pieces, length, self.coming_order = next(self.source)
        self.coming, self.filled = np.empty(length, np.int64), 0

    def _leave(self, slots: np.ndarray) -> None:
        """Refill the buffer after these samples have left it."""
        self.given += len(slots)
        self.free = np.concatenate([self.free, slots])
        self._fill(min(len(slots), len(self.coming) - self.filled))

    def _fill(self, count: int) -> None:
        """Read the next `count` samples of the coming window into free slots."""
        slots, self.free = self.free[:count], self.free[count:]
        self.coming[self.filled : self.filled + count] = slots
        self.filled += count
        while count:
            shard, row, rows = self.pieces[0]
            taken = min(count, rows)
            self._opened(shard).read(row, self.images, self.labels, slots[:taken])
            slots, count = slots[taken:], count - taken
            self.pieces[0] = (shard, row + taken, rows - taken)
            if taken == rows:
                del self.pieces[0]

    def _opened(self, shard: Shard) -> OpenShard:
        if self.open is None or self.open.shard != shard:
            if self.open is not None:
                self.open.close()
            self.open = OpenShard(self.split, shard)
        return self.open

    def _windows(self, epoch: int, window: int) -> Iterator[Tuple[List[Tuple[Shard, int, int]], int, np.ndarray]]:
        """Yield windows from the given one on: pieces (shard, first row, rows) in sequence, length, order of
        emission."""
        while True:
            keys = random_bits(len(self.shards), SHARD_ORDER, self.seed, self.rank, epoch)
            shards = [self.shards[number] for number in np.argsort(keys, kind="stable")]
            for start in range(window * self.buffer, self.samples, self.buffer):
                length = min(self.buffer, self.samples - start)
                bits = random_bits(length, WINDOW_ORDER, self.seed, self.rank, epoch, start // self.buffer)
                yield _pieces(shards, start, length), length, np.argsort(bits, kind="stable")
            epoch, window = epoch + 1, 0


def _pieces(shards: Sequence[Shard], start: int, length: int) -> List[Tuple[Shard, int, int]]:
    """Return the pieces of `length` samples from `start` on in the concatenation of these shards."""
    pieces, end = [], start + length
    for shard in shards:
        first, last = max(start, 0), min(end, shard.samples)
        if first < last:
            pieces.append((shard, first, last - first))
        start, end = start - shard.samples, end - shard.samples
    return pieces


class OpenShard:
    """A shard being read: offset of the images in their file, and the labels."""

    def __init__(self, split: ShardedSplit, shard: Shard) -> None:
        """Raises DataError."""
        self.shard, self.image_shape = shard, split.image_shape
        self.labels = read_labels(split, shard)
        self.begin = open_samples(split, shard).offset
        self.file = open(split.folder / shard.samples_file, "rb")  # noqa: SIM115 closed by `close`

    def read(self, row: int, images: np.ndarray, labels: np.ndarray, slots: np.ndarray) -> None:
        """Read samples from `row` on into these slots of both arrays, using at most PIECE_BYTES of extra memory."""
        labels[slots] = self.labels[row : row + len(slots)]
        size = int(np.prod(self.image_shape))
        self.file.seek(self.begin + row * size)
        most = max(1, PIECE_BYTES // size)
        for start in range(0, len(slots), most):
            places = slots[start : start + most]
            piece = np.fromfile(self.file, np.uint8, len(places) * size)
            images[places] = piece.reshape(len(places), *self.image_shape)

    def close(self) -> None:
        self.file.close()


def open_samples(split: ShardedSplit, shard: Shard) -> np.memmap:
    """Map the samples of a shard without reading them. Raises DataError if they do not match the index."""
    return _open(split.folder / shard.samples_file, (shard.samples, *split.image_shape), "uint8")


def read_labels(split: ShardedSplit, shard: Shard) -> np.ndarray:
    """Return [samples, *label_shape]. Raises DataError if they do not match the index."""
    path = split.folder / shard.labels_file
    labels = np.array(_open(path, (shard.samples, *split.label_shape), split.label_type))
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= split.classes:
        raise DataError(
            f"{path} has labels from {low} to {high}, but {split.classes} classes have labels 0 to {split.classes - 1}"
            "; correct classes in index.json, or the data"
        )
    return labels


def _open(path: Path, shape: Tuple[int, ...], kind: str) -> np.memmap:
    try:
        mapped = np.load(path, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise DataError(f"shard {path} cannot be read ({error}); make the shards again") from None
    if mapped.shape != shape or mapped.dtype != np.dtype(kind) or not mapped.flags.c_contiguous:
        raise DataError(
            f"shard {path} holds {mapped.dtype} {list(mapped.shape)}, index.json says {kind} {list(shape)} in C order; "
            "make the shards again"
        )
    return mapped
