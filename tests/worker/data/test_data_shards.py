"""Sharded data sets: format, order of samples per rank, resuming, and memory."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from project import PROJECT, Cli

from harness.core.errors import DataError
from harness.core.spec import DatasetSpec
from harness.worker.data.batches import Batches
from harness.worker.data.readers import open_dataset
from harness.worker.data.splits import Split
from harness.worker.data.stream import ShardedSplit, open_shards, training_batches

SIZE = 4
SHAPE = (SIZE, SIZE, 1)


def spec(buffer: int = 7, **changes: Any) -> DatasetSpec:
    return DatasetSpec(
        **{
            "name": "mine",
            "reader": "shards",
            "classes": 10,
            "channels": 1,
            "image_size": SIZE,
            "mean": (0.5,),
            "std": (0.25,),
            "augment": False,
            "shuffle_buffer": buffer,
            **changes,
        }
    )


def write(folder: Path, sizes: Sequence[int], **changes: Any) -> ShardedSplit:
    """Write shards as a user does, with numpy.save. The first bytes of an image are its index; its label is the index
    modulo 10."""
    folder.mkdir(parents=True, exist_ok=True)
    first = 0
    for number, samples in enumerate(sizes):
        numbers = np.arange(first, first + samples)
        images = np.zeros((samples, *SHAPE), np.uint8)
        images[:, 0, 0, 0], images[:, 0, 1, 0] = numbers % 256, numbers // 256
        np.save(folder / f"s{number}.samples.npy", images)
        np.save(folder / f"s{number}.labels.npy", numbers % 10)
        first += samples
    shards = [{"name": f"s{number}", "samples": samples} for number, samples in enumerate(sizes)]
    index = {"v": 1, "sample_shape": list(SHAPE), "classes": 10, "train": shards, "test": shards[:2], **changes}
    (folder / "index.json").write_text(json.dumps(index))
    train, _ = open_shards(folder)
    return train


def numbers_of(batches: Batches, steps: int) -> list[list[int]]:
    """Return the sample indices of each step, after checking their labels."""
    found = []
    with batches:
        for images, labels in islice(batches, steps):
            numbers = images[:, 0, 0, 0].astype(int) + 256 * images[:, 0, 1, 0].astype(int)
            np.testing.assert_array_equal(labels, numbers % 10)
            found.append(numbers.tolist())
    return found


def seen(
    train: ShardedSplit, steps: int, rank: int = 0, world: int = 1, first: int = 0, **more: Any
) -> list[list[int]]:
    batch, seed, buffer = more.get("batch", 4), more.get("seed", 0), more.get("buffer", 7)
    return numbers_of(training_batches(train, spec(buffer), batch * world, rank, world, seed, first), steps)


def flat(steps: list[list[int]]) -> list[int]:
    return [number for step in steps for number in step]


@pytest.mark.parametrize("buffer", [1, 7, 1000])
def test_each_sample_comes_once_per_epoch_on_the_rank_that_has_its_shard(tmp_path: Path, buffer: int) -> None:
    train = write(tmp_path, [20] * 6)
    everything = []
    for rank in range(3):
        mine = flat(seen(train, 20, rank, 3, buffer=buffer))
        # Shards rank and rank + 3, of 20 samples each, in 10 steps of 4; and again.
        expected = {*range(20 * rank, 20 * rank + 20), *range(20 * (rank + 3), 20 * (rank + 3) + 20)}
        assert set(mine[:40]) == set(mine[40:]) == expected
        # With a buffer of one sample only the order of the two shards changes, and it may not.
        assert buffer == 1 or mine[:40] != mine[40:]
        everything += mine[:40]
    assert sorted(everything) == list(range(120))


def test_the_order_is_the_seeds_and_reaches_no_further_than_the_buffer(tmp_path: Path) -> None:
    train = write(tmp_path, [60])
    order = flat(seen(train, 15))
    assert order == flat(seen(train, 15))
    assert order != flat(seen(train, 15, seed=1))
    # In sequence, 7 samples at a time, each 7 shuffled.
    windows = [order[start : start + 7] for start in range(0, 60, 7)]
    assert [sorted(window) for window in windows] == [list(range(s, min(s + 7, 60))) for s in range(0, 60, 7)]
    assert sum(window != sorted(window) for window in windows) > 5
    # Each epoch orders the shards differently.
    shards = [number // 3 for number in flat(seen(write(tmp_path / "b", [3] * 20), 60, buffer=1))]
    assert len({tuple(shards[start : start + 60 : 3]) for start in range(0, 240, 60)}) == 4


@pytest.mark.parametrize(("sizes", "batch", "buffer"), [([20] * 4, 4, 7), ([5, 9, 3, 8], 6, 4), ([5, 2], 11, 100)])
def test_a_run_that_goes_on_sees_what_an_uncut_one_sees(
    tmp_path: Path, sizes: list[int], batch: int, buffer: int
) -> None:
    train, steps = write(tmp_path, sizes), 25
    world = len(sizes) // 2
    for rank in range(world):
        uncut = seen(train, steps, rank, world, batch=batch, buffer=buffer)
        for first in range(0, steps, 3):
            rest = seen(train, steps - first, rank, world, first, batch=batch, buffer=buffer)
            assert rest == uncut[first:], (rank, first)


def test_augmentation_is_drawn_for_the_global_batch_as_everywhere(tmp_path: Path) -> None:
    train = write(tmp_path, [20] * 2)
    plain = training_batches(train, spec(), 8, 1, 2, seed=0)
    moved = training_batches(train, spec(augment=True), 8, 1, 2, seed=0)
    with plain, moved:
        (images, labels), (others, same) = next(plain), next(moved)
    np.testing.assert_array_equal(labels, same)
    assert not np.array_equal(images, others)


def test_the_test_part_is_read_like_any_other(tmp_path: Path) -> None:
    write(tmp_path, [3, 4, 5])
    train, test = open_dataset(spec(), str(tmp_path))
    assert (len(train), len(test)) == (12, 7)
    chosen = np.array([6, 0, 3])
    assert test.images(chosen)[:, 0, 0, 0].tolist() == [6, 0, 3]
    assert test.labels[chosen].tolist() == [6, 0, 3]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda f: (f / "index.json").write_text("{}"), "not the index of a data set in shards (no 'v')"),
        (lambda f: (f / "s0.samples.npy").unlink(), "cannot be read"),
        (lambda f: np.save(f / "s0.samples.npy", np.zeros((4, *SHAPE), np.uint8)), "json says uint8 [5, 4, 4, 1]"),
        (lambda f: np.save(f / "s0.samples.npy", np.zeros((5, *SHAPE), np.float32)), "holds float32 [5, 4, 4, 1]"),
        (lambda f: np.save(f / "s0.labels.npy", np.full(5, 10)), "has labels from 10 to 10, but 10 classes"),
        (lambda f: write(f, [5, 5], classes=9), "shards of 9 classes, but the configuration of data set 'mine'"),
        (lambda f: write(f, [5, 5], sample_shape=[5, 4, 1]), "images of data set 'mine' are 5 x 4 x 1"),
        (lambda f: write(f, [5]), "1 training shards are too few for 2 ranks"),
    ],
)  # fmt: skip
def test_shards_that_are_not_what_was_asked_for_are_refused(tmp_path: Path, damage: Any, said: str) -> None:
    write(tmp_path, [5, 5])
    damage(tmp_path)

    def read() -> None:
        train, _ = open_dataset(spec(), str(tmp_path))
        with training_batches(train, spec(), 4, 0, 2, seed=0) as batches:
            next(batches)

    with pytest.raises(DataError) as refused:
        read()
    assert said in str(refused.value)


RSS = """
import sys
from pathlib import Path
import numpy as np
from harness.core.spec import DatasetSpec
from harness.worker.data.splits import Split
from harness.worker.data.stream import open_shards, training_batches

def peak():
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(status["VmHWM"].split()[0]) * 1024

spec = DatasetSpec("mine", "shards", 10, 3, 64, (0.5,) * 3, (0.25,) * 3, False, shuffle_buffer=int(sys.argv[2]))
train, _ = open_shards(Path(sys.argv[1]))
before = peak()
with training_batches(train, spec, 64, 0, 1, seed=0) as batches:
    total = sum(int(next(batches)[0].sum()) for _ in range(len(train) // 64))
print(before, peak(), total)
"""


def test_the_memory_of_a_rank_is_that_of_its_buffer_and_not_of_its_shards(tmp_path: Path) -> None:
    """Measure the peak resident set of a process that reads 96 MiB through buffers of 6 MiB and of 96 MiB."""
    shape, shards, samples = (64, 64, 3), 8, 1024
    image = np.full(shape, 3, np.uint8)
    for number in range(shards):
        np.save(tmp_path / f"s{number}.samples.npy", np.broadcast_to(image, (samples, *shape)))
        np.save(tmp_path / f"s{number}.labels.npy", np.zeros(samples, np.int64))
    names = [{"name": f"s{number}", "samples": samples} for number in range(shards)]
    index = {"v": 1, "sample_shape": list(shape), "classes": 10, "train": names, "test": names[:1]}
    (tmp_path / "index.json").write_text(json.dumps(index))
    grown = {}
    for buffer in (512, shards * samples):
        done = subprocess.run(
            [sys.executable, "-c", RSS, str(tmp_path), str(buffer)],
            env={"PYTHONPATH": str(PROJECT)},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        before, after, total = map(int, done.stdout.split())
        assert total == 3 * image.size * samples * shards
        grown[buffer] = (after - before) / 2**20
    # The buffer of 6 MiB, six batches of 0.75 MiB, one piece being read, NumPy's start-up: measured 14.
    assert 6 < grown[512] < 24
    # The measure detects that all samples are held.
    assert grown[shards * samples] > 90


def samples_of(split: Split) -> list[tuple[bytes, bytes]]:
    every = np.arange(len(split))
    pairs = zip(split.images(every), split.targets(every), strict=True)
    return [(image.tobytes(), label.tobytes()) for image, label in pairs]


def test_text_in_shards_comes_with_the_tokens_that_follow(cli: Cli, tmp_path: Path) -> None:
    size = ("dataset.context=6", "dataset.train_samples=40", "dataset.test_samples=10")
    done = cli("harness.shards", "dataset=synthetic_text", *size, "--shards", "3")
    assert done.returncode == 0, done.stderr
    text = DatasetSpec("synthetic_text", "synthetic", 256, 0, 0, (), (), False, 40, 10, context=6)
    streamed = dataclasses.replace(text, reader="shards", train_samples=0, test_samples=0, shuffle_buffer=8)
    original, _ = open_dataset(text, None)
    train, test = open_dataset(streamed, str(tmp_path / "data"))
    assert (samples_of(train) == samples_of(original), len(test)) == (False, 10)
    found = []
    with training_batches(train, streamed, 4, 0, 1, seed=0) as batches:
        for tokens, following in islice(batches, 10):
            assert (tokens.dtype, following.dtype) == (np.uint8, np.int64)
            found += [(t.tobytes(), f.tobytes()) for t, f in zip(tokens, following, strict=True)]
    assert sorted(found) == sorted(samples_of(original)) == sorted(samples_of(train))


def test_one_command_makes_shards_of_a_data_set_with_every_sample_once(cli: Cli, tmp_path: Path) -> None:
    made = ("harness.shards", "dataset=synthetic", "dataset.train_samples=100", "dataset.test_samples=31")
    done = cli(*made, "--shards", "6")
    assert done.returncode == 0, done.stderr
    assert "6 training shards of at most 17 samples, 2 test shards" in done.stdout
    synthetic = DatasetSpec("synthetic", "synthetic", 10, 3, 32, (0.5,) * 3, (0.25,) * 3, True, 100, 31)
    for original, copy in zip(
        open_dataset(synthetic, None), open_shards(tmp_path / "data" / "synthetic-shards"), strict=True
    ):
        assert isinstance(copy, ShardedSplit)
        assert max(s.samples for s in copy.shards) - min(s.samples for s in copy.shards) <= 1
        assert len(copy) == len(original)
        first, second = samples_of(original), samples_of(copy)
        # The same samples, but not in the order of their classes.
        assert sorted(first) == sorted(second)
        assert first != second
    again = cli(*made)
    assert (again.returncode, "is already there" in again.stderr) == (2, True)
    few = ("harness", "-m", "gpus=4,8", "dataset=synthetic", "dataset.reader=shards", "cluster=local", "plan_only=true")
    refused = cli(*few)
    assert refused.returncode == 2
    assert "6 training shards are too few for 8 ranks" in refused.stderr
    uneven = cli(*few, "gpus=4")
    assert uneven.returncode == 0, uneven.stderr
    # Two ranks have two shards, of 17 and of 16 samples; two have one, of 17.
    assert (
        "6 training shards do not divide evenly between 4 ranks: their shares range from 17 to 33 samples"
        in uneven.stdout
    )
