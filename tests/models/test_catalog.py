from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from models import catalog

CIFAR = [20, 32, 44, 56, 110]


@pytest.mark.parametrize(
    ("depth", "millions"),
    # He et al. 2015, table 6 and section 4.2: "# params" of ResNet-20 to ResNet-110.
    [(20, 0.27), (32, 0.46), (44, 0.66), (56, 0.85), (110, 1.7)],
)
def test_cifar_resnets_have_the_published_number_of_parameters(depth: int, millions: float) -> None:
    layers = catalog.network(f"resnet{depth}").layers(3, 10)
    digits = 1 if millions > 1 else 2
    assert round(catalog.parameters(layers) / 1e6, digits) == millions


@pytest.mark.parametrize("depth", CIFAR)
def test_cifar_resnets_have_as_many_weighted_layers_as_their_name_says(depth: int) -> None:
    layers = catalog.flat(catalog.network(f"resnet{depth}").layers(3, 10))
    assert sum(isinstance(layer, (catalog.Convolution, catalog.Linear)) for layer in layers) == depth


@pytest.mark.parametrize(
    ("name", "parameters", "billions_of_multiply_adds"),
    # Parameters: the published counts of the reference implementations with 1000 classes (torchvision's table of
    # ResNet18_Weights and ResNet50_Weights). Multiply-adds: the same table, 1.81 and 4.09 (v1.5).
    [("resnet18", 11_689_512, 1.81), ("resnet50", 25_557_032, 4.09)],
)
def test_imagenet_resnets(name: str, parameters: int, billions_of_multiply_adds: float) -> None:
    layers = catalog.network(name).layers(3, 1000)
    assert catalog.parameters(layers) == parameters
    assert catalog.forward_flops(layers, 224) / 2e9 == pytest.approx(billions_of_multiply_adds, abs=0.005)


def test_an_unknown_name_lists_the_rows() -> None:
    with pytest.raises(ValueError, match="'resnet9' is not in the catalogue; it has: resnet20, resnet32"):
        catalog.network("resnet9")


@pytest.mark.torch
@pytest.mark.parametrize("name", list(catalog.CATALOG))
def test_pytorch_builds_the_row(name: str, in_torch: Callable[..., Any]) -> None:
    size = 32 if catalog.network(name).min_image_size == 8 else 64
    built = in_torch("describe", name, size)
    assert built["parameters"] == catalog.parameters(catalog.network(name).layers(3, 10))
    assert built["logits"] == [2, 10]
    assert built["multiply_adds"] * 2 == catalog.forward_flops(catalog.network(name).layers(3, 10), size)
