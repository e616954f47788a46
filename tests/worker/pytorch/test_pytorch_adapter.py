"""The PyTorch adapter, run in the PyTorch environment (the other halves are in tests/worker/sides/torch_side.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.torch

InTorch = Callable[..., Any]


def test_asking_for_a_gpu_where_there_is_none_is_an_error_and_no_fall_back(in_torch: InTorch) -> None:
    message = in_torch("refuses_cpu_instead_of_gpu")
    if message == "accepted":
        pytest.skip("torch sees a GPU here")
    assert "asks for device cuda" in message
    assert "cluster.device=cpu" in message


def test_a_step_is_what_it_is_when_written_by_hand(in_torch: InTorch) -> None:
    # fp32 rounding over three steps of weights of order 1.
    assert in_torch("step_by_hand")["difference"] < 1e-5


@pytest.mark.parametrize("name", ["sgd", "adam", "lars"])
def test_an_optimiser_is_that_of_its_paper(in_torch: InTorch, name: str) -> None:
    assert in_torch("optimizer_by_hand", name) < 1e-12  # double precision


@pytest.mark.parametrize("name", ["adam", "lars"])
def test_an_optimiser_goes_on_from_its_saved_state(in_torch: InTorch, name: str) -> None:
    assert in_torch("optimizer_continues", name)


def test_larger_steps_for_biases_and_slow_weights_are_their_formulas_and_go_on_from_a_saved_state(
    in_torch: InTorch,
) -> None:
    found = in_torch("recipe_by_hand")
    assert found["biases"] == 6
    # fp32 rounding over eight steps; a wrong factor or share would be a fraction of how far the weights moved.
    assert found["apart"] < 1e-3 * found["moved"]
    assert found["moved"] > 0.05
    assert found["kernel"], "what is not trained stays"
    assert found["continues"]


def test_a_network_for_text_goes_on_from_its_saved_state(in_torch: InTorch) -> None:
    assert in_torch("optimizer_continues", "adam", True)


def test_logits_are_those_of_the_network_with_its_running_statistics(in_torch: InTorch) -> None:
    difference, training = in_torch("logits_and_torch")
    # The same network; differences are rounding due to the memory layout.
    assert difference < 1e-4
    assert training
