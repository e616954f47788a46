"""The initial weights of all frameworks."""

from __future__ import annotations

import numpy as np
import pytest

from models import catalog, initial


# The large text networks are initialised like the small one, but take minutes.
@pytest.mark.parametrize("name", [name for name in catalog.CATALOG if not name.startswith("gpt2")])
def test_initial_weights_match_the_parameter_count(name: str) -> None:
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


def test_initialisation_before_relus_and_of_the_last_layer() -> None:
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
    # 36,864 samples: the standard deviation of the estimate is 0.4 %; 2 % is five of these.
    assert largest.std() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.02)


def test_a_network_for_text_starts_as_gpt2_did() -> None:
    layers = catalog.network("gpt_tiny").layers(0, 256, 128)
    tokens, positions, *first_block = initial.weights(layers, 0)[:18]
    # 4096 samples or more: five standard deviations of the estimate are 6 %.
    assert tokens.std() == pytest.approx(0.02, rel=0.06)
    assert positions.std() == pytest.approx(0.01, rel=0.06)
    by_shape = [array.shape for array in first_block]
    matrix, vector = (64, 64), (64,)
    assert by_shape == [*[vector] * 2, *[matrix, vector] * 4, *[vector] * 2, (256, 64), (256,), (64, 256), vector]
    for at, spread in ((2, 0.02), (8, 0.02 / 4**0.5), (12, 0.02), (14, 0.02 / 4**0.5)):  # two blocks: four additions
        assert first_block[at].std() == pytest.approx(spread, rel=0.06)
        assert not first_block[at + 1].any()


def test_identity_convolution_copies_its_inputs_and_initialises_the_rest_like_pytorch() -> None:
    layers = (catalog.Convolution(24, 64, 3, 1, 1, identity=True), catalog.Convolution(64, 16, 3, 1, 1, identity=True))
    wider, narrower = initial.weights(layers, 0)
    for kernel, same in ((wider, 24), (narrower, 16)):
        # Only the middle pixel of the same channel.
        np.testing.assert_array_equal(kernel[:same, :, 1, 1], np.eye(same, kernel.shape[1], dtype=np.float32))
        assert np.count_nonzero(kernel[:same]) == same
    rest = wider[24:]
    bound = (24 * 9) ** -0.5
    # The largest of 8,640 numbers is almost certainly within 1 % of the bound.
    assert 0.99 * bound < np.abs(rest).max() <= bound


IMAGES = np.random.default_rng(5).integers(0, 256, (40, 10, 12, 3)).astype(np.uint8)
IMAGES[:, 1:] = IMAGES[:, 1:] // 2 + IMAGES[:, :-1] // 2  # correlates neighbouring pixels
MEAN, STD = (0.5, 0.4, 0.3), (0.25, 0.2, 0.3)


def test_a_whitening_layer_gives_components_of_equal_variance_and_no_covariance_then_the_same_negated() -> None:
    kernel = initial.whitening(catalog.Whitening(3, 2), IMAGES, MEAN, STD)
    assert (kernel.shape, kernel.dtype, kernel.flags.c_contiguous) == ((24, 3, 2, 2), np.float32, True)
    np.testing.assert_array_equal(kernel[12:], -kernel[:12])
    # As in the network: normalised, and each patch multiplied by each filter.
    pixels = ((IMAGES / 255 - MEAN) / STD).transpose(0, 3, 1, 2)
    windows = np.lib.stride_tricks.sliding_window_view(pixels, (2, 2), axis=(2, 3))
    outputs = np.einsum("nchwyx,fcyx->fnhw", windows, kernel[:12]).reshape(12, -1)
    # An epsilon of 5e-4 relative to variances of at least 0.05: 1 %.
    np.testing.assert_allclose(np.cov(outputs, bias=True), np.eye(12), atol=0.012)


def test_a_whitening_layer_depends_on_the_images_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = catalog.Whitening(3, 2)
    kernel = initial.whitening(layer, IMAGES, MEAN, STD)
    monkeypatch.setattr(initial, "PATCHES", 700)  # a few images at a time
    np.testing.assert_array_equal(initial.whitening(layer, IMAGES, MEAN, STD), kernel)
    np.testing.assert_array_equal(initial.whitening(layer, IMAGES[::-1], MEAN, STD), kernel)
    assert not np.array_equal(initial.whitening(layer, IMAGES[:20], MEAN, STD), kernel)
    strongest = np.abs(kernel[:12].reshape(12, -1)).argmax(axis=1)
    assert (kernel[:12].reshape(12, -1)[np.arange(12), strongest] > 0).all()
