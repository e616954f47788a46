"""PyTorch's strategies against DDP, with real ranks (the other half is in tests/worker/sides/strategies_side.py)."""

from __future__ import annotations

from typing import Any

import pytest
from environments import in_environment, trains_on_cpus

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]

DDP, LATE = {"bucket_mb": None}, {"bucket_mb": 0.2, "overlap": False}
Case = tuple[str, dict[str, Any], float]


def against_allreduce(nodes: int, per_node: int, *cases: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    side = ("pytorch", "strategies_side", "against_allreduce")
    said: list[dict[str, Any]] = in_environment(*side, nodes, per_node, cases, timeout_seconds=850)
    return said


@pytest.mark.parametrize(
    "cases",
    [
        [
            # The same sums in buckets of another size: fp32 rounding, amplified over four steps.
            ("allreduce", LATE, 1e-4),
            ("zero1", DDP, 1e-4),
            # 2 x 4 samples x (64 + 10) numbers are fewer than 2 x 64 x 10, so the last layer sends factors. Its product
            # is rounded otherwise in every step: on processors without AVX-512 an activation near 0 changes its sign.
            ("hybrid", DDP, 2e-3),
        ],
        [
            # Averaging weights equals a step with averaged gradients, up to rounding of the weights, which moved
            # little.
            ("local_sgd", {"sync_every": 1}, 5e-3),
            # Messages are rounded to 11 and 8 bits.
            ("allreduce", {**DDP, "compress": "fp16"}, 5e-3),
            ("allreduce", {**DDP, "compress": "bf16"}, 2e-2),
            ("allreduce", {**LATE, "compress": "fp16"}, 5e-3),
        ],
        [("fsdp", {}, 1e-4)],
    ],
    ids=["exact", "rounded", "divided"],
)
def test_ranks_that_are_synchronised_learn_what_ddp_does(cases: list[Case]) -> None:
    if not all(trains_on_cpus(strategy) for strategy, *_ in cases):
        with pytest.raises(AssertionError, match=r"strategy=fsdp on CPUs needs torch 2\.10 or newer"):
            against_allreduce(1, 2, *(case[:2] for case in cases))
        return
    for (strategy, options, bound), said in zip(cases, against_allreduce(1, 2, *(c[:2] for c in cases)), strict=True):
        case = f"{strategy} {options}: {said}"
        assert said["world_sizes"] == [2, 2], case
        assert said["apart"] < bound, case
        if bound < 5e-3:
            assert said["step_apart"] < 1e-5, f"more than rounding in one step: {case}"
        assert said["ranks_apart"] == 0, case
        assert said["as_before_scoring"], case
        assert said["continues"], case
        assert (said["alone_apart"] > 0) == (strategy != "fsdp"), case


def test_batchnorm_statistics_are_not_sent_in_each_step_and_evaluation_takes_those_of_rank_0() -> None:
    found = in_environment("pytorch", "buffers_side", "statistics")
    assert found["broadcasts"] == [False, False, True, True]
    assert found["own_while_training"]
    assert found["rank_0_scores"]
    assert all(found["as_ddp"]), "weights, statistics and logits are those of DDP with its broadcast, bit for bit"
    assert found["saved"]


def test_node_by_node_is_the_same_sum() -> None:
    [said] = against_allreduce(2, 2, ("hierarchical", {"bucket_mb": 0.2}))
    assert said["world_sizes"] == [4] * 4
    # Four numbers added in another order; activations near 0 amplify the rounding (verify.py). A sum instead of the
    # mean would be off by 3, a missing node by a half.
    assert said["apart"] < 2e-2
    assert said["ranks_apart"] == 0
    assert said["continues"]


def test_what_learns_something_else_learns_nearly_that_and_goes_on_bit_by_bit() -> None:
    power, local = against_allreduce(
        *(1, 2),
        ("allreduce", {**DDP, "compress": "powersgd", "powersgd_rank": 2}),
        ("local_sgd", {"sync_every": 3}),
    )
    # Two full steps, then two of low rank: less than four steps move, more than rounding.
    assert 1e-3 < power["apart"] < 0.5
    assert power["ranks_apart"] == 0
    assert power["continues"]
    # One step after averaging; evaluation uses the mean again, and training continues from each rank's own weights.
    assert local["ranks_apart"] > 0
    assert local["scored_apart"] < 1e-5
    assert local["as_before_scoring"]
    assert local["continues"]
    assert 1e-3 < local["apart"] < 0.5
