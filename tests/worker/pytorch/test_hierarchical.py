"""Gradients pass between nodes during backward (other half: tests/worker/sides/hierarchical_side.py)."""

from __future__ import annotations

from typing import Any

import pytest
from environments import in_environment

pytestmark = pytest.mark.torch


def side(function: str) -> Any:
    return in_environment("pytorch", "hierarchical_side", function)


def test_no_bucket_waits_for_another_rank_before_the_end_of_backward() -> None:
    first, second = side("held_back")
    buckets = first["buckets"][-1]
    assert buckets == second["buckets"][-1] > 3
    assert first["done"] == [False] * buckets, "the other node has not begun: nothing can be done"
    assert second["waited"], "all of rank 0's buckets were on their way before rank 1 began with its own"
    for rank in (first, second):  # the allreduce probe: each message of ones becomes one of twos
        assert rank["bytes"] == rank["gradient_bytes"]
        assert rank["sums"] == [2.0, 2.0] * buckets


def test_buckets_stay_in_order_and_an_error_in_a_step_is_the_ranks() -> None:
    said = side("in_order")
    assert said["results"] == [0, 1, 2, "three", 4]
    assert said["first"] == said["second"] == [0, 1, 2, 4]
    assert said["alive"] == [False, False]
