"""The weights that all frameworks start from."""

from __future__ import annotations

import numpy as np
import pytest

from models import catalog, initial


@pytest.mark.parametrize("name", catalog.CATALOG)
def test_there_are_as_many_as_the_network_has_parameters(name: str) -> None:
    layers = catalog.network(name).layers(3, 10, 64)
    assert sum(array.size for array in initial.weights(layers, 0)) == catalog.parameters(layers)


def test_they_never_change() -> None:
    layers = catalog.network("resnet20").layers(3, 10, 64)
    first = initial.weights(layers, 7)[0]
    # RandomState(7).standard_normal() begins with 1.690525703800356 (NumPy promises it); 16 outputs of 3 x 3.
    assert first[0, 0, 0, 0] == pytest.approx(1.690525703800356 * (2 / (16 * 9)) ** 0.5)


def test_another_seed_gives_others() -> None:
    layers = catalog.network("resnet20").layers(3, 10, 64)
    one, other = (initial.weights(layers, seed) for seed in (0, 1))
    assert not np.array_equal(one[0], other[0])


def test_a_network_that_starts_each_block_as_identity_has_scales_of_zero() -> None:
    arrays = initial.weights(catalog.network("resnet18").layers(3, 10, 64), 0)
    vectors = [array for array in arrays if array.ndim == 1]
    # resnet18 has 8 blocks, each with one BatchNorm of scale 0; shifts are 0 too, one per BatchNorm (20).
    assert sum(not array.any() for array in vectors) == 8 + 20


def test_what_a_relu_follows_has_biases_of_zero_and_its_spread_and_the_last_layer_that_of_pytorch() -> None:
    *first, hidden, hidden_bias, last, last_bias = initial.weights(catalog.network("cnn_small").layers(3, 10, 224), 0)
    assert not any(array.any() for array in [*first[1::2], hidden_bias])
    # 128 x 6272 samples: five standard deviations of the estimate are 0.4 %.
    assert hidden.std() == pytest.approx((2 / 128) ** 0.5, rel=0.004)
    # 1 / sqrt(128), nearly reached by one of 1280.
    assert 0.087 < np.abs(last).max() < 128**-0.5
    assert last_bias.any()


def test_the_spread_is_what_he_et_al_ask_for() -> None:
    layers = catalog.network("resnet44").layers(3, 10, 64)
    largest = max(initial.weights(layers, 0), key=lambda array: array.size)
    assert largest.shape == (64, 64, 3, 3)
    # 36,864 samples: the standard deviation is known to about 0.4 %; 2 % is five of these.
    assert largest.std() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.02)
