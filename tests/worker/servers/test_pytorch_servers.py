"""Parameter servers with PyTorch: real ranks, real servers, virtual nodes (other halves:
tests/worker/sides/servers_side.py)."""

from __future__ import annotations

from typing import Any

import pytest
from environments import in_environment

pytestmark = pytest.mark.torch

NOTHING_LOST = {"returns": 0, "lost_updates": 0, "lost_samples": 0}


def in_ranks(function: str, *arguments: Any) -> Any:
    return in_environment("pytorch", "servers_side", function, *arguments, timeout_seconds=400)


def trained(strategy: str, nodes: int, per_node: int, **job: Any) -> list[dict[str, Any]]:
    said = in_ranks("trained", strategy, nodes, per_node, job)
    assert all("losses" in one for one in said), [one.get("stderr") for one in said]
    return said


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("nodes", "per_node", "servers", "nesterov", "says"),
    [
        (2, 1, None, False, "parameter servers: 2 on 2 nodes, synchronous"),
        (1, 2, 1, True, "parameter servers: 1 on 1 node, synchronous"),
    ],
)
def test_synchronous_servers_give_the_weights_of_allreduce(
    nodes: int, per_node: int, servers: int | None, nesterov: bool, says: str
) -> None:
    found = in_ranks("same_as_allreduce", nodes, per_node, servers, nesterov)
    # Rounding, amplified by each step on noise: 1e-6 after one, 1e-4 after three. A forgotten weight decay is 1e-2.
    assert found["weights"] < 1e-3
    assert found["gradients"] < 1e-6
    assert found["ranks_agree"]
    assert found["gradients_agree"]
    assert found["communication"] == says
    assert found["updates"] == {"updates": 3, "mean": 0.0, "max": 0, "samples": 3 * 2 * 8, "lead": 0, **NOTHING_LOST}


@pytest.mark.timeout(400)
def test_asynchronous_servers_apply_every_gradient_and_count_how_late_it_was() -> None:
    steps, workers = 20, 3
    said = trained("ps_async", workers, 1, steps=steps, servers=2)
    assert said[0]["communication"] == f"parameter servers: 2 on {workers} nodes, asynchronous"
    updates = said[0]["updates"]
    assert (updates["updates"], updates["samples"]) == (steps * workers, steps * workers * 8)
    # Everything that makes one worker's updates stale was pushed once by another: at most `workers - 1` on average. Of
    # the first pushes, all from unchanged weights, the last followed all others.
    assert 0 < updates["mean"] <= workers - 1
    assert updates["max"] >= workers - 1
    assert [one["updates"] for one in said[1:]] == [None, None]
    # All ranks evaluate the same model; training continues from each worker's own.
    assert all(one["scored"] == said[0]["scored"] for one in said)
    assert all(one["kept"] for one in said)
    assert not any(one["server_left"] for one in said)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("staleness", [0, 2])
def test_bounded_staleness_holds_with_a_slow_rank(staleness: int) -> None:
    steps, ranks = 12, 3
    said = trained("ssp", ranks, 1, steps=steps, staleness=staleness, slow=0.5)
    assert said[0]["communication"] == f"parameter servers: 3 on 3 nodes, staleness at most {staleness}"
    # As seen by the ranks: when one began step n, the slowest had finished at least n - staleness - 1 (and had pushed
    # at most one more, whose answer was in flight).
    ends = [[end for _, end in one["moments"]] for one in said]
    for one in said:
        for step, (begun, _) in enumerate(one["moments"]):
            assert min(sum(end < begun for end in other) for other in ends) >= step - staleness - 1
    updates = said[0]["updates"]
    assert updates["lead"] == staleness
    assert updates["max"] <= (ranks - 1) * (2 * staleness + 1)


@pytest.mark.timeout(400)
def test_mixed_servers_have_one_worker_per_node() -> None:
    steps = 6
    said = trained("ps_mixed", 2, 2, steps=steps, no_sync=1)
    assert said[0]["communication"] == (
        "parameter servers: 2 on 2 nodes, synchronous inside a node, asynchronous between nodes"
    )
    updates = said[0]["updates"]
    assert (updates["updates"], updates["samples"]) == (2 * steps, 4 * steps * 8)
    assert updates["mean"] < 2
    # Within a node all weights are equal after each step.
    assert said[0]["weights"] == said[1]["weights"]
    assert said[2]["weights"] == said[3]["weights"]
    assert all(one["scored"] == said[0]["scored"] for one in said)
    # Without synchronisation each rank has its own, and the servers receive nothing.
    assert said[0]["after_no_sync"] == updates
    assert said[0]["apart"] != said[1]["apart"]
    assert [one["totals"] for one in said] == [[4.0, 6.0]] * 4


@pytest.mark.timeout(400)
def test_a_synchronous_run_that_was_cut_goes_on_bit_for_bit() -> None:
    found = in_ranks("resumed", "ps_sync", 6, 4)
    updates = {"updates": 6, "mean": 0.0, "max": 0, "samples": 6 * 2 * 8, "lead": 0, **NOTHING_LOST}
    assert found.pop("updates_of_all") == updates
    assert found == dict.fromkeys(("losses", "weights", "scored", "updates", "momenta"), True)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("strategy", ["ps_async", "ssp"])
def test_ranks_go_on_with_a_server_that_was_killed_and_came_back(strategy: str) -> None:
    steps = 20
    said = trained(strategy, 2, 1, steps=steps, staleness=2, kill="server", slow=0.1)
    [back] = said[0]["back"] + said[1]["back"]
    assert back["server"] == 0
    assert 0 < back["seconds"] < 20
    updates = said[0]["updates"]
    assert (updates["updates"], updates["samples"], updates["returns"]) == (2 * steps, 2 * steps * 8, 1)
    assert (updates["lost_updates"], updates["lost_samples"]) == (back["lost_updates"], back["lost_samples"])
    assert updates["lost_samples"] == 8 * updates["lost_updates"]
    assert strategy == "ps_async" or updates["lead"] <= 2
    assert all(one["scored"] == said[0]["scored"] for one in said)
    # 0.35 to 0.47, with and without a restart. A share of zeros, or of other tensors, would give tens.
    assert 0.2 < said[0]["moved"] < 1
    assert not any(one["server_left"] for one in said)


@pytest.mark.timeout(400)
def test_synchronous_ranks_fail_within_seconds_of_a_server() -> None:
    # Rank 1 is slow: it still has steps to do when the server dies, and is not waiting for rank 0 in a sum.
    said = in_ranks("trained", "ps_sync", 2, 1, {"steps": 20, "kill": "server", "slow": 0.1})
    assert [one["code"] for one in said] == [1, 1]
    # The rank of the dead server waits 3 s before it exits (colocated.py). The run's time limit is 60 s.
    assert all(one["seconds"] < 20 for one in said)
    assert "a parameter server ended too early" in said[0]["stderr"] or "is gone" in said[0]["stderr"]
    assert "parameter server 0 of 2 at " in said[1]["stderr"]
    assert "is gone" in said[1]["stderr"]


@pytest.mark.timeout(400)
def test_a_synchronous_rank_fails_within_seconds_of_another() -> None:
    """Rank 1's own server survives and names the lost worker; rank 0's died with its rank."""
    said = in_ranks("trained", "ps_sync", 2, 1, {"steps": 20, "kill": "rank"})
    assert [one["code"] for one in said] == [-9, 1]
    assert said[1]["seconds"] < 30  # on a loaded machine; the time limit of the run is 60
    assert "is gone" in said[1]["stderr"]
