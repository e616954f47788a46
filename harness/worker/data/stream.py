"""Reads a data set in shards (harness/core/shards.py), a rank its share, through a shuffle buffer.

Of a rank's share, each epoch takes the shards in an order of its own, made from (seed, rank, epoch), and cuts the
sequence of their samples into windows as long as the buffer. A window is handed out in a random order of its own, and
as its samples leave the buffer, those of the next one take their places, read in sequence. So the order depends on
(seed, rank, number of ranks, buffer) alone, a position in it is found by arithmetic, and memory is that of the buffer:
no more than `buffer` samples, a piece of PIECE_BYTES that is being read, and the labels of one shard.

A rank's epochs are those of its own share: where shares differ, a rank with fewer samples begins its next epoch sooner.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from harness.core.data_errors import DataError
from harness.core.shards import Shard, read_index, share
from harness.core.spec import DatasetSpec
from harness.worker.data.batches import Batch, Batches
from harness.worker.data.bits import SHARD_ORDER, WINDOW_ORDER, random_bits
from harness.worker.data.sampling import Draw
from harness.worker.data.sharding import SampleOrder, rank_batch_size
from harness.worker.data.splits import Split

PIECE_BYTES = 2**20


class ShardedSplit(Split):
    """One part of a data set in shards. Images are read when they are asked for; labels all at once, when first asked
    for, which training does not do."""

    def __init__(self, folder: Path, shards: Sequence[Shard], sample_shape: Tuple[int, ...], classes: int) -> None:
        self.folder, self.shards, self.classes = folder, tuple(shards), classes
        self.image_shape = sample_shape
        # Of text, what follows each token.
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
    """Training and test part. Raises DataError."""
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
    """The batches of one rank: of a data set in shards, those of its share; else its slices of the order of all."""
    if isinstance(train, ShardedSplit):
        return StreamedBatches(train, spec, global_batch, rank, world, seed, first_step, prefetch)
    order = SampleOrder(len(train), seed)
    return Batches(train, order, spec, global_batch, rank, world, seed, first_step, prefetch)


class StreamedBatches(Batches):
    """As `Batches`, of the rank's share of the shards. Raises DataError where there is no shard for each rank."""

    def __init__(
        self,
        train: ShardedSplit,
        spec: DatasetSpec,
        global_batch: int,
        rank: int,
        world: int,
        seed: int,
        first_step: int = 0,
        prefetch: int = 4,
    ) -> None:
        size = rank_batch_size(rank, world, global_batch)
        self.stream = ShardStream(train, share(train.shards, rank, world), rank, size, spec.shuffle_buffer, seed)
        order = SampleOrder(len(train), seed)  # asked for no samples: it is the stream that has them
        self._begin(Draw(order, spec, global_batch, rank, world, seed), first_step, prefetch)

    def _read(self, step: int) -> Batch:
        return self.stream.batch(step)

    def facts(self) -> Dict[str, Any]:
        own = self.stream
        return {"stream": {"shards": len(own.shards), "samples": own.samples, "buffer_samples": len(own.images)}}


class ShardStream:
    """The samples of one rank's share, without end. For use by one thread."""

    def __init__(
        self, split: ShardedSplit, shards: Sequence[Shard], rank: int, size: int, buffer: int, seed: int
    ) -> None:
        """size: samples per step. buffer: of samples, at most. Raises DataError where it is below 1."""
        if buffer < 1:
            raise DataError(
                f"a shuffle buffer of {buffer} samples is not possible; take at least 1 (data.shuffle_buffer)"
            )
        self.split, self.shards, self.rank, self.size, self.seed = split, tuple(shards), rank, size, seed
        self.samples = sum(shard.samples for shard in self.shards)
        self.buffer = min(buffer, self.samples)
        self.images = np.empty((self.buffer, *split.image_shape), np.uint8)
        self.labels = np.empty((self.buffer, *split.label_shape), split.label_type)
        self.open: Optional[OpenShard] = None
        self.next_step: Optional[int] = None

    def batch(self, step: int) -> Batch:
        """Of step `step`, from 0; quick where the steps come one after another. Raises DataError where a shard cannot
        be read."""
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
        """To the sample at `position` of the rank's endless sequence: its window is read, and what would be there of
        the next one."""
        epoch, offset = divmod(position, self.samples)
        self.source = self._windows(epoch, offset // self.buffer)
        self.free = np.arange(self.buffer)
        self._take_window()
        self._next_window()
        self._leave(self.slots[self.order[: offset % self.buffer]])

    def _next_window(self) -> None:
        """What is left of the coming window is read; it is handed out now, and another one is coming."""
        self._fill(len(self.coming) - self.filled)
        self.slots, self.order, self.given = self.coming, self.coming_order, 0
        self._take_window()

    def _take_window(self) -> None:
        self.pieces, length, self.coming_order = next(self.source)
        self.coming, self.filled = np.empty(length, np.int64), 0

    def _leave(self, slots: np.ndarray) -> None:
        """These samples have left the buffer."""
        self.given += len(slots)
        self.free = np.concatenate([self.free, slots])
        self._fill(min(len(slots), len(self.coming) - self.filled))

    def _fill(self, count: int) -> None:
        """The next `count` samples of the coming window, into free places."""
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
        """From a window of an epoch on: its pieces (shard, first row, rows) in sequence, its length, the order in which
        its samples are handed out."""
        while True:
            keys = random_bits(len(self.shards), SHARD_ORDER, self.seed, self.rank, epoch)
            shards = [self.shards[number] for number in np.argsort(keys, kind="stable")]
            for start in range(window * self.buffer, self.samples, self.buffer):
                length = min(self.buffer, self.samples - start)
                bits = random_bits(length, WINDOW_ORDER, self.seed, self.rank, epoch, start // self.buffer)
                yield _pieces(shards, start, length), length, np.argsort(bits, kind="stable")
            epoch, window = epoch + 1, 0


def _pieces(shards: Sequence[Shard], start: int, length: int) -> List[Tuple[Shard, int, int]]:
    """Of the samples of these shards one after another, `length` from `start` on."""
    pieces, end = [], start + length
    for shard in shards:
        first, last = max(start, 0), min(end, shard.samples)
        if first < last:
            pieces.append((shard, first, last - first))
        start, end = start - shard.samples, end - shard.samples
    return pieces


class OpenShard:
    """A shard that is being read: where its images begin in their file, and its labels."""

    def __init__(self, split: ShardedSplit, shard: Shard) -> None:
        """Raises DataError."""
        self.shard, self.image_shape = shard, split.image_shape
        self.labels = read_labels(split, shard)
        self.begin = open_samples(split, shard).offset
        self.file = open(split.folder / shard.samples_file, "rb")  # noqa: SIM115 until `close`

    def read(self, row: int, images: np.ndarray, labels: np.ndarray, slots: np.ndarray) -> None:
        """The samples from `row` on into these places of both arrays; no more than PIECE_BYTES beside them."""
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
    """The samples of a shard, of which nothing is read yet. Raises DataError where they are not what the index says."""
    return _open(split.folder / shard.samples_file, (shard.samples, *split.image_shape), "uint8")


def read_labels(split: ShardedSplit, shard: Shard) -> np.ndarray:
    """[samples, *label_shape]. Raises DataError where they are not what the index says."""
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
