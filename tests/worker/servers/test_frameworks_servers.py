"""Strategies that frameworks share, with real ranks: parameter servers, Horovod's options (other half:
tests/worker/sides/ranks_side.py)."""

from __future__ import annotations

from typing import Any

import pytest
from environments import in_environment

pytestmark = pytest.mark.timeout(600)

HOROVOD = {"controller": "gloo", "compress": "none", "hierarchical": False}
SERVERS: dict[str, Any] = {"servers": None}
# For this project's servers; MXNet's are never restarted.
NO_RETURNS = {"returns": 0, "lost_updates": 0, "lost_samples": 0}
Case = tuple[str, dict[str, Any]]


def compared(framework: str, nodes: int, per_node: int, *cases: Case, steps: int = 3) -> list[dict[str, Any]]:
    """Return each case compared with the first."""
    environment = "tensorflow" if framework == "keras" else framework
    asked = (framework, nodes, per_node, cases, steps)
    said: list[dict[str, Any]] = in_environment(environment, "ranks_side", "compare", *asked, timeout_seconds=550)
    for one in said:
        assert [facts["world_size"] for facts in one["facts"]] == [nodes * per_node] * len(one["facts"])
        ranks = nodes * per_node
        assert all(facts["totals"] == [ranks, 2.0**24, sum(range(ranks))] for facts in one["facts"])
        assert one["same_scored"]
        assert one["kept"]
        assert one["apart_without_exchange"]
    assert said[0]["moved"] > 0
    return said


@pytest.mark.parametrize(
    ("framework", "says"),
    [
        ("mxnet", "KVStore dist_sync, parameter servers: 2 on 2 nodes, synchronous"),
        ("tensorflow", "parameter servers: 2 on 2 nodes, synchronous"),
        ("jax", "parameter servers: 2 on 2 nodes, synchronous"),
    ],
)
@pytest.mark.whole  # in CI, Keras and PyTorch with ours, and MXNet with its own, asynchronous
def test_synchronous_servers_and_rounded_gradients_against_the_frameworks_own(framework: str, says: str) -> None:
    allreduce: Case = ("allreduce", {"bucket_mb": None} if framework == "tensorflow" else {})
    fp16 = {**HOROVOD, "compress": "fp16"}
    # The run with servers is interrupted after a step and resumed from its checkpoint, with ramp, momenta and counters.
    horovod: list[Case] = [("horovod", fp16)] if framework != "jax" else []
    _, servers, *rounded = compared(framework, 2, 1, allreduce, ("ps_sync", {**SERVERS, "cut": 1}), *horovod)
    # Measured: 0, as a sum of two does not depend on order; 1.4e-6 in JAX, which compiles its own update. A forgotten
    # momentum is of order 1.
    assert servers["apart"] < 1e-5
    assert servers["gradients"] < 1e-5
    assert servers["same_weights"] == [True, True]
    assert servers["same_gradients"]
    assert servers["facts"][0]["communication"] == says
    updates = {"updates": 3, "mean": 0.0, "max": 0, "samples": 3 * 2 * 8, "lead": 0}
    assert servers["facts"][0]["updates"] == (updates if framework == "mxnet" else {**updates, **NO_RETURNS})
    # fp16 has 11 bits, and fewer below 6e-5, where many of these gradients are. Measured: 1.1e-3.
    for said in rounded:
        assert 1e-4 < said["gradients"] < 5e-3
        assert 1e-4 < said["apart"] < 5e-3
        assert said["same_weights"] == [True, True]


def test_asynchronous_servers_of_mxnet_apply_every_gradient_and_say_how_late_it_was() -> None:
    steps, nodes, per_node = 6, 2, 2
    [said] = compared("mxnet", nodes, per_node, ("ps_mixed", SERVERS), steps=steps)
    assert said["facts"][0]["communication"] == (
        "KVStore dist_async, parameter servers: 2 on 2 nodes, synchronous inside a node, asynchronous between nodes"
    )
    updates = said["facts"][0]["updates"]
    assert (updates["updates"], updates["samples"]) == (steps * nodes, steps * nodes * per_node * 8)
    # Everything that makes one worker's updates stale was pushed once by the other. Of the first pushes, both from
    # unchanged weights, one came second.
    assert 0 < updates["mean"] <= nodes - 1
    assert 1 <= updates["max"] <= steps
    assert [facts["updates"] for facts in said["facts"][1:]] == [None] * 3
    # Within a node all weights are equal after each step.
    same = said["same_weights"]
    assert (same[0], same[1], same[2] == same[3]) == (True, True, True)


def test_servers_step_in_the_place_of_keras_optimiser() -> None:
    """On one node `ps_mixed` has one worker, with the mean of the node's ranks."""
    allreduce: Case = ("allreduce", {"bucket_mb": None})
    _, servers = compared("keras", 1, 2, allreduce, ("ps_mixed", SERVERS))
    assert servers["apart"] < 1e-5
    assert servers["same_weights"] == [True, True]
    updates = {"updates": 3, "mean": 0.0, "max": 0, "samples": 3 * 2 * 8, "lead": 0}
    assert servers["facts"][0]["updates"] == {**updates, **NO_RETURNS}


@pytest.mark.torch
def test_horovod_node_by_node_gives_what_it_gives_in_one_ring() -> None:
    by_node = {**HOROVOD, "hierarchical": True}
    _, said = compared("pytorch", 2, 2, ("horovod", HOROVOD), ("horovod", by_node), steps=1)
    # Four numbers in another order: rounding. One step only; the next may switch a ReLU (verify.py).
    assert said["gradients"] < 1e-5
    assert said["apart"] < 1e-5
    assert said["same_weights"] == [True] * 4
    assert said["facts"][0]["communication"] == "Horovod over gloo, 2 x 2"
