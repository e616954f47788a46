"""Activations kept for backward, compared with what PyTorch's autograd is observed to keep."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from builders import SYNTHETIC, TEXT

from models import activations, catalog

CASES = [(SYNTHETIC, "resnet20"), (SYNTHETIC, "cnn_small"), (SYNTHETIC, "airbench94"), (TEXT, "gpt_tiny")]
BATCH = 8


@pytest.mark.torch
def test_the_arithmetic_is_what_autograd_keeps(in_torch: Callable[..., Any]) -> None:
    cases = [(data, name, precision) for data, name in CASES for precision in ("fp32", "bf16")]
    asked = [(name, dataclasses.asdict(data), precision, BATCH) for data, name, precision in cases]
    for (data, name, precision), seen in zip(cases, in_torch("saved_for_backward", asked), strict=True):
        layers = catalog.network(name).layers(data.channels, data.classes, data.size)
        number_bytes = 4 if precision == "fp32" else 2
        counted = BATCH * activations.bytes_per_sample(layers, data.channels, data.size, number_bytes)
        counted += activations.weight_copies_bytes(layers, number_bytes)
        # Not counted: BatchNorm's batch statistics, 0.08 % of resnet20 in bf16, and one number of the loss.
        assert counted <= seen <= 1.001 * counted, (name, precision, counted, seen)


def test_a_network_for_images_keeps_in_proportion_to_their_pixels() -> None:
    small, large = (
        activations.bytes_per_sample(catalog.network("resnet44").layers(3, 10, size), 3, size, 4) for size in (32, 64)
    )
    # Except for the last vector and the logits.
    assert large == pytest.approx(4 * small, rel=1e-3)


@pytest.mark.parametrize("name", catalog.CATALOG)
def test_every_row_can_be_counted_and_half_precision_keeps_less(name: str) -> None:
    layers = catalog.network(name).layers(3, 10, 64)
    single, half = (activations.bytes_per_sample(layers, 3, 64, number_bytes) for number_bytes in (4, 2))
    # More than half, since some values are fp32 or indices in any precision.
    assert single / 2 < half < single
    copies = activations.weight_copies_bytes(layers, 2)
    assert 0 < copies <= 2 * catalog.parameters(layers)
    assert activations.weight_copies_bytes(layers, 4) == 0
