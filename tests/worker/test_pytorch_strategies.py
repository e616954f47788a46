"""PyTorch's strategies against DDP, with real ranks (the other half is in tests/strategies_side.py)."""

from __future__ import annotations

from typing import Any

import pytest
from environments import in_environment

pytestmark = pytest.mark.torch

LATE = {"bucket_mb": 0.2, "overlap": False}


def against_allreduce(*arguments: Any) -> dict[str, Any]:
    said: dict[str, Any] = in_environment("pytorch", "strategies_side", "against_allreduce", *arguments)
    return said


@pytest.mark.parametrize(
    ("strategy", "options", "bound"),
    [
        # The same sums in buckets of another size: fp32 rounding, that four steps let grow.
        ("allreduce", LATE, 1e-4),
        ("zero1", {"bucket_mb": None}, 1e-4),
        ("fsdp", {}, 1e-4),
        # 2 x 4 samples x (64 + 10) numbers are fewer than 2 x 64 x 10: the last layer sends factors.
        ("hybrid", {"bucket_mb": None}, 1e-4),
        # The mean of weights is the step with the mean of gradients; its rounding is that of the weights, which moved
        # little.
        ("local_sgd", {"sync_every": 1}, 5e-3),
        # Rounding to 11 and 8 bits, on the way only; of gradients that are a part of what they are in the sum.
        ("allreduce", {"bucket_mb": None, "compress": "fp16"}, 5e-3),
        ("allreduce", {"bucket_mb": None, "compress": "bf16"}, 2e-2),
        ("allreduce", {**LATE, "compress": "fp16"}, 5e-3),
    ],
)
def test_ranks_that_are_synchronised_learn_what_ddp_does(strategy: str, options: dict[str, Any], bound: float) -> None:
    said = against_allreduce(strategy, options)
    assert said["world_sizes"] == [2, 2]
    assert said["apart"] < bound
    assert said["ranks_apart"] == 0
    assert said["as_before"]
    assert (said["without_exchange_apart"] > 0) == (strategy != "fsdp")


def test_node_by_node_is_the_same_sum() -> None:
    said = against_allreduce("hierarchical", {"bucket_mb": 0.2}, 2, 2)
    assert said["world_sizes"] == [4] * 4
    assert said["apart"] < 1e-4
    assert said["ranks_apart"] == 0


def test_powersgd_is_near_and_its_ranks_are_equal() -> None:
    said = against_allreduce("allreduce", {"bucket_mb": None, "compress": "powersgd", "powersgd_rank": 2})
    # After two whole steps, two of low rank: less than what these steps move, more than rounding.
    assert 1e-3 < said["apart"] < 0.5
    assert said["ranks_apart"] == 0


def test_local_sgd_scores_the_mean_and_trains_on_from_each_ranks_own() -> None:
    said = against_allreduce("local_sgd", {"sync_every": 3})
    # One step after the average.
    assert said["ranks_apart"] > 0
    assert said["scored_apart"] < 1e-5
    assert said["as_before"]
    assert 1e-5 < said["apart"] < 0.5


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("zero1", {"bucket_mb": None}),
        ("fsdp", {}),
        ("hybrid", {"bucket_mb": None}),
        ("local_sgd", {"sync_every": 2}),
        ("allreduce", {"bucket_mb": None, "compress": "powersgd", "powersgd_rank": 2}),
        ("allreduce", LATE),
    ],
)
def test_what_was_saved_goes_on_bit_by_bit(strategy: str, options: dict[str, Any]) -> None:
    assert in_environment("pytorch", "strategies_side", "continues_exactly", strategy, options)
