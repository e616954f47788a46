"""Which samples form which batch: each once per epoch, independent of the number of ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.errors import DataError
from harness.worker.data.sharding import SampleOrder, evaluation_shard, rank_batch_size

SAMPLES = st.integers(1, 60)
WORLDS = st.integers(1, 12)
LOCAL = st.integers(1, 20)
SEEDS = st.integers(0, 2**40)


def global_batch_of(order: SampleOrder, step: int, world: int, size: int) -> np.ndarray:
    return np.concatenate([order.rank_batch(step, rank, world, size) for rank in range(world)])


@given(SAMPLES, WORLDS, LOCAL, SEEDS)
def test_every_sample_is_used_exactly_once_per_epoch(samples: int, world: int, local: int, seed: int) -> None:
    order, size, epochs = SampleOrder(samples, seed), world * local, 3
    steps = -(-epochs * samples // size)
    stream = np.concatenate([global_batch_of(order, step, world, size) for step in range(steps)])
    for epoch in range(epochs):
        used = stream[epoch * samples : (epoch + 1) * samples]
        assert sorted(used.tolist()) == list(range(samples))


@given(SAMPLES, st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 24]), min_size=1), st.integers(0, 40), SEEDS)
def test_samples_of_a_step_do_not_depend_on_the_number_of_ranks(
    samples: int, worlds: list[int], step: int, seed: int
) -> None:
    alone = SampleOrder(samples, seed).rank_batch(step, 0, 1, 24)
    for world in worlds:
        np.testing.assert_array_equal(global_batch_of(SampleOrder(samples, seed), step, world, 24), alone)


@given(SAMPLES, WORLDS, LOCAL, st.lists(st.integers(0, 50), min_size=1, max_size=6))
def test_batch_is_full_and_a_function_of_its_step_alone(samples: int, world: int, local: int, steps: list[int]) -> None:
    """Batches do not depend on the order of requests: a resumed run gets those of an uninterrupted one."""
    order = SampleOrder(samples, 5)
    for step in steps:
        batch = order.rank_batch(step, world - 1, world, world * local)
        assert batch.shape == (local,)
        assert batch.dtype == np.int64
        np.testing.assert_array_equal(batch, SampleOrder(samples, 5).rank_batch(step, world - 1, world, world * local))


@given(st.integers(0, 200), WORLDS)
def test_evaluation_covers_every_sample_exactly_once(samples: int, world: int) -> None:
    shards = [evaluation_shard(samples, rank, world) for rank in range(world)]
    assert sorted(np.concatenate(shards).tolist()) == list(range(samples))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1
    assert all(shard.dtype == np.int64 for shard in shards)


def test_order_differs_between_epochs_and_between_seeds() -> None:
    order = SampleOrder(1000, 0)
    for other in (order.epoch(1), SampleOrder(1000, 1).epoch(0), np.arange(1000)):
        assert (order.epoch(0) == other).mean() < 0.02  # of two random permutations 1 in 1000 places agrees


def test_order_is_uniform_over_places() -> None:
    """Chi-squared of where sample 0 lands in 5,000 epochs of 10: 9 degrees of freedom, 27.9 has probability 0.001."""
    places = [int(np.argmin(SampleOrder(10, seed).epoch(epoch))) for seed in range(50) for epoch in range(100)]
    counts = np.bincount(places, minlength=10)
    assert ((counts - 500) ** 2 / 500).sum() < 27.9


def test_order_is_the_same_with_every_numpy_version() -> None:
    # Recorded with NumPy 1.23.5 and 2.4.6; NEP 19 guarantees Philox's stream.
    assert SampleOrder(10, 0).epoch(0).tolist() == [2, 0, 1, 4, 5, 6, 7, 8, 3, 9]
    assert SampleOrder(10, 2026).epoch(3).tolist() == [6, 8, 4, 1, 5, 9, 0, 2, 7, 3]


def test_batch_may_be_changed_without_changing_the_order() -> None:
    order = SampleOrder(8, 0)
    order.rank_batch(0, 0, 1, 8)[:] = 0
    assert sorted(order.rank_batch(0, 0, 1, 8).tolist()) == list(range(8))


@pytest.mark.parametrize(("size", "world"), [(10, 4), (0, 1), (-4, 2), (3, 4)])
def test_global_batch_that_ranks_cannot_share_is_refused(size: int, world: int) -> None:
    with pytest.raises(DataError, match=rf"global batch of {size} .* by {world} ranks; use a multiple of {world}"):
        rank_batch_size(0, world, size)
    with pytest.raises(DataError, match="cannot be shared"):
        SampleOrder(100, 0).rank_batch(0, 0, world, size)


@pytest.mark.parametrize(("rank", "world"), [(4, 4), (-1, 4), (0, 0)])
def test_rank_outside_the_world_is_refused(rank: int, world: int) -> None:
    with pytest.raises(DataError, match=f"rank {rank} of {world} ranks does not exist"):
        SampleOrder(100, 0).rank_batch(0, rank, world, 4)
    with pytest.raises(DataError, match=f"rank {rank} of {world} ranks does not exist"):
        evaluation_shard(100, rank, world)


def test_order_of_nothing_and_negative_seed_are_refused() -> None:
    with pytest.raises(DataError, match="training set of 0 samples"):
        SampleOrder(0, 0)
    with pytest.raises(DataError, match="seed -1 is negative"):
        SampleOrder(10, -1).epoch(0)
