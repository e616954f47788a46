"""Accuracy and loss from logits: the same for every framework."""

from __future__ import annotations

import numpy as np
import pytest

from harness.worker.adapter import checksum
from harness.worker.loop import score
from harness.worker.test_time_augmentation import logits_of


def test_correct_are_those_whose_largest_logit_is_the_labels() -> None:
    logits = np.array([[2.0, 1.0], [0.0, 3.0], [5.0, 4.0]], np.float32)
    samples, correct, _ = score(logits, np.array([0, 1, 1]))
    assert (samples, correct) == (3, 2)


def test_of_text_each_token_is_a_prediction() -> None:
    logits = np.zeros((2, 3, 4), np.float32)
    logits[..., 1] = 1.0
    predictions, correct, loss = score(logits, np.array([[1, 1, 0], [1, 2, 3]]))
    assert (predictions, correct) == (6, 3)
    # One of the four logits is 1: -log of e / (e + 3), and of 1 / (e + 3).
    assert loss == pytest.approx(6 * np.log(np.e + 3) - 3)


def test_the_loss_is_the_cross_entropy_in_nats() -> None:
    # Two equal logits: each class has probability 1/2, so every sample costs log 2.
    assert score(np.zeros((4, 2), np.float32), np.array([0, 1, 0, 1]))[2] == pytest.approx(4 * np.log(2))


def test_large_logits_do_not_overflow() -> None:
    assert score(np.array([[1e4, 0.0]], np.float32), np.array([1]))[2] == pytest.approx(1e4)


def test_a_checksum_adds_up_in_double_precision() -> None:
    # In float32, 1e8 + 1 is 1e8.
    arrays = [np.array([1e8, -1.0], np.float32), np.ones((2, 3), np.float32)]
    assert checksum(arrays) == (1e8 + 5, 1e8 + 7)


def test_logits_of_several_views_are_their_weighted_mean() -> None:
    images = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4, 1)
    seen: list[np.ndarray] = []

    def network(pixels: np.ndarray) -> np.ndarray:
        assert pixels.flags.c_contiguous
        assert pixels.dtype == np.uint8
        seen.append(pixels)
        return np.full((2, 5), len(seen), np.float32)  # 1 for the first view, 2 for the second, ...

    assert (logits_of(network, images, 1) == 1).all()
    seen.clear()
    assert (logits_of(network, images, 2) == 1.5).all()
    np.testing.assert_array_equal(seen[1], seen[0][:, :, ::-1])
    seen.clear()
    # A quarter each, then an eighth each.
    assert (logits_of(network, images, 6) == (1 + 2) / 4 + (3 + 4 + 5 + 6) / 8).all()
    np.testing.assert_array_equal(seen[0], images)
    up, down = seen[2][0, :, :, 0], seen[4][0, :, :, 0]
    np.testing.assert_array_equal(up, [[5, 6, 7, 6], [9, 10, 11, 10], [5, 6, 7, 6]])
    np.testing.assert_array_equal(down, [[5, 4, 5, 6], [1, 0, 1, 2], [5, 4, 5, 6]])
    for at in (0, 2, 4):
        np.testing.assert_array_equal(seen[at + 1], seen[at][:, :, ::-1])
