from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from models import catalog

CIFAR = [20, 32, 44, 56, 110]
# Their fully connected layers depend on the size of the images.
FLATTENED = ["alexnet", "vgg16", "cnn_small", "cnn_medium", "cnn_large", "cnn_xlarge"]

IMAGES = [name for name, row in catalog.CATALOG.items() if row.inputs == catalog.IMAGES]
TEXT = [name for name, row in catalog.CATALOG.items() if row.inputs == catalog.TEXT]


@pytest.mark.parametrize(
    ("depth", "millions"),
    # He et al. 2015, table 6 and section 4.2: "# params" of ResNet-20 to ResNet-110.
    [(20, 0.27), (32, 0.46), (44, 0.66), (56, 0.85), (110, 1.7)],
)
def test_cifar_resnets_have_the_published_number_of_parameters(depth: int, millions: float) -> None:
    layers = catalog.network(f"resnet{depth}").layers(3, 10, 32)
    digits = 1 if millions > 1 else 2
    assert round(catalog.parameters(layers) / 1e6, digits) == millions


@pytest.mark.parametrize("depth", CIFAR)
def test_cifar_resnets_have_as_many_weighted_layers_as_their_name_says(depth: int) -> None:
    layers = catalog.flat(catalog.network(f"resnet{depth}").layers(3, 10, 32))
    assert sum(isinstance(layer, (catalog.Convolution, catalog.Linear)) for layer in layers) == depth


@pytest.mark.parametrize(
    ("name", "parameters", "billions_of_multiply_adds"),
    # With 1000 classes: torchvision's tables of ResNet18_Weights, ResNet50_Weights (4.09: v1.5), AlexNet_Weights and
    # VGG16_Weights. At 224 pixels its adaptive pooling in front of the fully connected layers changes nothing.
    [
        ("resnet18", 11_689_512, 1.81),
        ("resnet50", 25_557_032, 4.09),
        ("alexnet", 61_100_840, 0.71),
        ("vgg16", 138_357_544, 15.47),
    ],
)
def test_imagenet_networks_are_of_the_published_size(
    name: str, parameters: int, billions_of_multiply_adds: float
) -> None:
    layers = catalog.network(name).layers(3, 1000, 224)
    assert catalog.parameters(layers) == parameters
    assert catalog.forward_flops(layers, 224) / 2e9 == pytest.approx(billions_of_multiply_adds, abs=0.005)


def test_resnet9_is_of_the_published_size() -> None:
    network = catalog.network("resnet9").layers(3, 10, 32)
    # Page 2018, part 4: 6,573,120 parameters; here the last layer has biases.
    assert catalog.parameters(network) == 6_573_120 + 10
    weighted = [layer for layer in catalog.flat(network) if isinstance(layer, (catalog.Convolution, catalog.Linear))]
    assert len(weighted) == 9


def test_airbench94_is_of_the_published_size() -> None:
    network = catalog.network("airbench94").layers(3, 10, 32)
    # Jordan 2024, section 3.1: "roughly 1.97M parameters", here without the kernel that is not trained.
    assert catalog.parameters(network) / 1e6 == pytest.approx(1.97, abs=0.005)
    # Abstract and section 1: 3.6e14 FLOPs in 9.9 epochs, counting a training step as three forward passes.
    assert 3 * 9.9 * 50000 * catalog.forward_flops(network, 32) == pytest.approx(3.6e14, rel=0.03)
    assert catalog.side_after(network[:-3], 32) == 1


def test_each_cnn_is_several_times_larger_than_the_previous_one() -> None:
    family = [catalog.network(f"cnn_{size}").layers(3, 67, 224) for size in ("small", "medium", "large", "xlarge")]
    for smaller, larger in itertools.pairwise(family):
        assert catalog.parameters(larger) > 2 * catalog.parameters(smaller)
        assert catalog.forward_flops(larger, 224) > 2 * catalog.forward_flops(smaller, 224)


@pytest.mark.parametrize("name", FLATTENED)
def test_networks_that_flatten_take_every_image_from_the_smallest_on(name: str) -> None:
    row = catalog.network(name)
    for size in range(row.min_image_size, row.min_image_size + 40):
        in_order = row.layers(3, 10, size)
        at = in_order.index(catalog.Flatten())
        first = in_order[at + 1]
        assert isinstance(first, catalog.Linear)
        assert first.inputs >= 1, size
    with pytest.raises(AssertionError, match="too small"):
        row.layers(3, 10, row.min_image_size - 1)


def test_an_unknown_name_lists_the_rows() -> None:
    with pytest.raises(ValueError, match="'resnet7' is not in the catalogue; it has: resnet20, resnet32"):
        catalog.network("resnet7")


@pytest.mark.parametrize(
    ("name", "parameters"),
    # With the published vocabulary and context, as transformers 4 counts the published weights (GPT2LMHeadModel), which
    # share the output matrix with the embedding; here it is separate.
    [
        ("gpt2", 124_439_808),
        ("gpt2_medium", 354_823_168),
        ("gpt2_large", 774_030_080),
        ("gpt2_xl", 1_557_611_200),
    ],
)
def test_gpt2_is_of_the_published_sizes(name: str, parameters: int) -> None:
    layers = catalog.network(name).layers(0, 50257, 1024)
    assert catalog.parameters(layers) - catalog.parameters(layers[-1:]) == parameters


@pytest.mark.torch
def test_logits_of_pytorch_text_networks_do_not_depend_on_later_tokens(in_torch: Callable[..., Any]) -> None:
    layers = catalog.network("gpt_tiny").layers(0, 256, 24)
    found = in_torch("describe_text", "gpt_tiny", 256, 24, TEXT)
    assert set(found["parameters"]) == set(TEXT)
    for name, counted in found["parameters"].items():
        assert counted == catalog.parameters(catalog.network(name).layers(0, 256, 24)), name
    assert found["logits"] == [2, 24, 256]
    assert found["flops"] == catalog.forward_flops(layers, 24)
    # Only the last of 24 tokens was changed.
    assert found["changed"] == [23]
    # Chance is ln 256 nats per token; small random weights are slightly worse.
    assert found["loss"] == pytest.approx(5.545, abs=0.05)


@pytest.mark.torch
@pytest.mark.parametrize("name", IMAGES)
def test_pytorch_builds_the_row(name: str, in_torch: Callable[..., Any]) -> None:
    size = 32 if catalog.network(name).min_image_size == 8 else 64
    built = in_torch("describe", name, size)
    assert built["parameters"] == catalog.parameters(catalog.network(name).layers(3, 10, size))
    assert built["logits"] == [2, 10]
    assert built["multiply_adds"] * 2 == catalog.forward_flops(catalog.network(name).layers(3, 10, size), size)
