"""Batches of a rank: content, augmentation independent of the number of ranks, and the prefetching thread."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from harness.core.errors import DataError
from harness.core.spec import DatasetSpec
from harness.worker.data.augment import augment, crop_offsets, flips
from harness.worker.data.batches import evaluation_batches
from harness.worker.data.bits import AUGMENTATION, random_bits
from harness.worker.data.sharding import SampleOrder
from harness.worker.data.splits import ArraySplit, Split
from harness.worker.data.stream import training_batches

PLAIN = DatasetSpec("x", "synthetic", 10, 3, 12, (0.5,) * 3, (0.25,) * 3, augment=False)
AUGMENTED = DatasetSpec("x", "synthetic", 10, 3, 12, (0.5,) * 3, (0.25,) * 3, augment=True)
RNG = np.random.default_rng(3)
IMAGES = RNG.integers(0, 256, (50, 12, 12, 3), dtype=np.uint8)
SPLIT = ArraySplit(IMAGES, RNG.integers(0, 10, 50))


class CountingSplit(ArraySplit):
    """A split that counts how many batches were read and fails at a given one."""

    def __init__(self, fail_at: int = -1, error: BaseException | None = None) -> None:
        super().__init__(IMAGES, SPLIT.labels)
        self.reads, self.fail_at, self.error = 0, fail_at, error

    def images(self, indices: np.ndarray) -> np.ndarray:
        if self.reads == self.fail_at and self.error is not None:
            raise self.error
        self.reads += 1
        return super().images(indices)


def batches(
    split: Split = SPLIT, spec: DatasetSpec = PLAIN, size: int = 24, rank: int = 0, world: int = 1, **more: int
):
    return training_batches(split, spec, size, rank, world, seed=1, **more)


def wait_until(condition, seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def test_batches_without_augmentation_are_the_samples_in_order() -> None:
    order = SampleOrder(50, 1)
    with batches(rank=1, world=2) as stream:
        for step, (images, labels) in enumerate(islice(stream, 8)):
            chosen = order.rank_batch(step, 1, 2, 24)
            np.testing.assert_array_equal(images, IMAGES[chosen])
            np.testing.assert_array_equal(labels, SPLIT.labels[chosen])
            assert (images.dtype, labels.dtype, images.flags.c_contiguous) == (np.uint8, np.int64, True)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("height", "width"), [(12, 12), (8, 13), (90, 90)])
def test_augmentation_is_crop_after_zero_padding_and_flip(channels: int, height: int, width: int) -> None:
    images = RNG.integers(1, 256, (200, height, width, channels), dtype=np.uint8)
    bits = random_bits(200, AUGMENTATION, 0, 0)
    result = augment(images, bits)
    assert (result.shape, result.dtype, result.flags.c_contiguous) == (images.shape, np.uint8, True)
    for image, out, y, x, flip in zip(
        images, result, crop_offsets(bits, 1), crop_offsets(bits, 21), flips(bits), strict=True
    ):
        padded = np.pad(image, ((4, 4), (4, 4), (0, 0)))
        crop = padded[y : y + height, x : x + width]
        np.testing.assert_array_equal(out, crop[:, ::-1] if flip else crop)


@pytest.mark.parametrize("pixels", [0, 2, 7])
def test_crops_can_go_less_far_and_reflect_what_is_beyond_the_edge(pixels: int) -> None:
    images = RNG.integers(1, 256, (200, 8, 13, 3), dtype=np.uint8)
    bits = random_bits(200, AUGMENTATION, 0, 0)
    result = augment(images, bits, pixels, reflect=True)
    rows, columns = crop_offsets(bits, 1, pixels), crop_offsets(bits, 21, pixels)
    assert (rows.min(), rows.max()) == (columns.min(), columns.max()) == (0, 2 * pixels)
    for image, out, y, x, flip in zip(images, result, rows, columns, flips(bits), strict=True):
        # Row 0 is followed upwards by rows 1, 2, ...
        at_rows = [_inside(row, 8) for row in range(y - pixels, y - pixels + 8)]
        at_columns = [_inside(column, 13) for column in range(x - pixels, x - pixels + 13)]
        crop = image[at_rows][:, at_columns]
        np.testing.assert_array_equal(out, crop[:, ::-1] if flip else crop)


def _inside(at: int, size: int) -> int:
    return -at if at < 0 else 2 * (size - 1) - at if at >= size else at


@pytest.mark.parametrize("world", [1, 3])
def test_alternating_flips_turn_each_image_in_every_second_epoch_and_half_of_them_in_the_first(world: int) -> None:
    spec = replace(AUGMENTED, crop_pixels=0, alternating_flip=True)
    order, turned = SampleOrder(50, 1), np.full((50, 4), -1)
    for rank in range(world):
        with batches(spec=spec, rank=rank, world=world) as stream:
            for step, (images, _) in enumerate(islice(stream, 9)):  # 216 samples: four epochs, and more
                for at, (image, sample) in enumerate(zip(images, order.rank_batch(step, rank, world, 24), strict=True)):
                    epoch = (step * 24 + rank * 24 // world + at) // 50
                    flipped = np.array_equal(image, IMAGES[sample][:, ::-1])
                    assert flipped or np.array_equal(image, IMAGES[sample])
                    if epoch < 4:
                        turned[sample, epoch] = flipped
    assert set(np.unique(turned)) == {0, 1}
    np.testing.assert_array_equal(turned[:, 1], 1 - turned[:, 0])
    np.testing.assert_array_equal(turned[:, 2:], turned[:, :2])
    # 50 coins: 12 or fewer of one side, or 38 or more, have probability 0.0003.
    assert 12 < turned[:, 0].sum() < 38


def test_crops_and_flips_are_uniform_and_independent() -> None:
    bits = random_bits(81 * 2 * 1000, AUGMENTATION, 0, 0)
    cell = (crop_offsets(bits, 1) * 9 + crop_offsets(bits, 21)) * 2 + flips(bits)
    counts = np.bincount(cell, minlength=162)
    # Chi-squared with 161 degrees of freedom: 223 has probability 0.001.
    assert ((counts - 1000) ** 2 / 1000).sum() < 223


def test_augmentation_does_not_depend_on_the_number_of_ranks() -> None:
    def first_four(rank: int, world: int) -> list[np.ndarray]:
        with batches(spec=AUGMENTED, rank=rank, world=world) as stream:
            return [images for images, _ in islice(stream, 4)]

    alone = first_four(0, 1)
    assert any((image != IMAGES[chosen]).any() for image, chosen in zip(alone[0], SampleOrder(50, 1).epoch(0)))  # noqa: B905
    for world in (2, 3, 8):
        ranks = [first_four(rank, world) for rank in range(world)]
        for step in range(4):
            np.testing.assert_array_equal(np.concatenate([mine[step] for mine in ranks]), alone[step])


def test_augmentation_differs_from_step_to_step() -> None:
    one = ArraySplit(IMAGES[:1], np.zeros(1))
    with batches(one, AUGMENTED, size=1) as stream:
        assert len({images.tobytes() for images, _ in islice(stream, 20)}) > 10  # of 162 possible


def test_first_step_continues_where_an_earlier_run_stopped() -> None:
    with batches(spec=AUGMENTED) as whole, batches(spec=AUGMENTED, first_step=3) as rest:
        for (images, labels), (again, labels_again) in zip(islice(whole, 3, 6), islice(rest, 3), strict=True):
            np.testing.assert_array_equal(images, again)
            np.testing.assert_array_equal(labels, labels_again)


def test_batch_belongs_to_the_consumer() -> None:
    before = IMAGES.copy(), SPLIT.labels.copy()
    with batches() as stream:
        images, labels = next(stream)
        images[:] = 0
        labels[:] = 0
    np.testing.assert_array_equal(SPLIT.images(np.arange(50)), before[0])
    np.testing.assert_array_equal(SPLIT.labels, before[1])


def test_no_more_batches_than_asked_for_are_made_ahead() -> None:
    split = CountingSplit()
    with batches(split, prefetch=3) as stream:
        assert wait_until(lambda: split.reads == 3)
        time.sleep(0.1)
        assert split.reads == 3
        next(stream)
        assert wait_until(lambda: split.reads == 4)


def test_waiting_thread_uses_no_processor_time() -> None:
    split = CountingSplit()
    with batches(split, prefetch=2):
        assert wait_until(lambda: split.reads == 2)
        time.sleep(0.05)
        before = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - before < 0.1


@pytest.mark.parametrize(
    "error", [DataError("image x.jpg cannot be decoded"), MemoryError("full"), KeyboardInterrupt()]
)
def test_error_of_the_thread_reaches_the_consumer_as_it_was_after_the_good_batches(error: BaseException) -> None:
    with batches(CountingSplit(fail_at=2, error=error)) as stream:
        next(stream)
        next(stream)
        for _ in range(2):  # and again, so that nobody waits for ever
            with pytest.raises(type(error)) as caught:
                next(stream)
            assert caught.value is error


def test_close_ends_the_thread_while_it_waits_for_a_consumer_that_stopped() -> None:
    split = CountingSplit()
    stream = batches(split, prefetch=2)
    assert wait_until(lambda: split.reads == 2)
    started = time.monotonic()
    stream.close()
    assert time.monotonic() - started < 1
    assert not [thread for thread in threading.enumerate() if thread.name == "prefetch"]
    assert list(stream) == []
    stream.close()  # twice does no harm


def test_close_releases_a_consumer_that_waits() -> None:
    held = threading.Event()

    class SlowSplit(CountingSplit):
        def images(self, indices: np.ndarray) -> np.ndarray:
            held.wait(200)
            return super().images(indices)

    stream = batches(SlowSplit())
    got: list[object] = []
    consumer = threading.Thread(target=lambda: got.extend(stream))
    consumer.start()
    closer = threading.Thread(target=stream.close)
    closer.start()
    consumer.join(60)
    assert not consumer.is_alive()
    assert got == []
    held.set()
    closer.join(60)
    assert not closer.is_alive()


def test_batches_made_when_they_are_asked_for_are_the_same_without_a_thread() -> None:
    with batches(spec=AUGMENTED, first_step=3) as ahead, batches(spec=AUGMENTED, first_step=3, prefetch=0) as stream:
        assert len([thread for thread in threading.enumerate() if thread.name == "prefetch"]) == 1
        for made, expected in zip(islice(stream, 4), ahead, strict=False):
            np.testing.assert_array_equal(made[0], expected[0])
            np.testing.assert_array_equal(made[1], expected[1])
    assert list(stream) == []


def test_batch_that_ranks_cannot_share_and_a_negative_prefetch_are_refused() -> None:
    with pytest.raises(DataError, match="global batch of 10 cannot be shared equally by 4 ranks"):
        batches(size=10, world=4)
    with pytest.raises(DataError, match="prefetch -1 is not possible"):
        batches(prefetch=-1)
    assert not [thread for thread in threading.enumerate() if thread.name == "prefetch"]


def test_evaluation_batches_cover_the_indices_in_order_as_they_are() -> None:
    chosen = np.arange(1, 50, 3)
    parts = list(evaluation_batches(SPLIT, chosen, 5))
    assert [len(labels) for _, labels in parts] == [5, 5, 5, 2]
    np.testing.assert_array_equal(np.concatenate([images for images, _ in parts]), IMAGES[chosen])
    np.testing.assert_array_equal(np.concatenate([labels for _, labels in parts]), SPLIT.labels[chosen])
    assert list(evaluation_batches(SPLIT, chosen[:0], 5)) == []


def test_evaluation_batch_of_nothing_is_refused() -> None:
    with pytest.raises(DataError, match="evaluation batch of 0 samples"):
        next(evaluation_batches(SPLIT, np.arange(3), 0))
