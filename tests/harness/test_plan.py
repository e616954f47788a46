from __future__ import annotations

import pytest
from builders import make_request

from harness.errors import UserError
from harness.plan import make_plan, node_hours, place
from harness.spec import Placement


@pytest.mark.parametrize(
    ("gpus", "nodes", "ranks"),
    # Counts of the published study on 4-GPU nodes, and 6, which does not fill its nodes.
    [(1, 1, 1), (2, 1, 2), (3, 1, 3), (4, 1, 4), (6, 2, 3), (8, 2, 4), (9, 3, 3), (12, 3, 4)],
)
def test_ranks_are_spread_evenly_over_the_fewest_nodes(gpus: int, nodes: int, ranks: int) -> None:
    assert place(gpus, 4) == Placement(nodes, ranks)


@pytest.mark.parametrize(
    ("gpus", "nearest"), [(5, "4 and 6"), (7, "6 and 8"), (10, "9 and 12"), (11, "9 and 12"), (13, "12 and 16")]
)
def test_uneven_count_is_refused_with_the_nearest_valid_ones(gpus: int, nearest: str) -> None:
    with pytest.raises(UserError, match=f"gpus={gpus} cannot be placed evenly .* {nearest}"):
        place(gpus, 4)


@pytest.mark.parametrize("gpus", [0, -1])
def test_count_below_one_is_refused(gpus: int) -> None:
    with pytest.raises(UserError, match=f"gpus={gpus}: give a whole number of at least 1"):
        place(gpus, 4)


def test_every_valid_count_is_reported_as_its_own_nearest() -> None:
    for gpus_per_node in (1, 2, 3, 4, 6, 8):
        for gpus in range(1, 60):
            try:
                placement = place(gpus, gpus_per_node)
            except UserError:
                assert gpus % -(-gpus // gpus_per_node) != 0
            else:
                assert placement.world_size == gpus
                assert placement.ranks_per_node <= gpus_per_node
                assert (placement.nodes - 1) * gpus_per_node < gpus


def test_sixty_runs_of_five_shapes_become_five_arrays() -> None:
    shapes = [(1, 1), (2, 1), (4, 1), (8, 2), (12, 3)]
    requests = [
        make_request(gpus, nodes, model=model, seed=seed)
        for model in ("resnet20", "resnet44", "resnet56", "resnet110")
        for seed in range(3)
        for gpus, nodes in shapes
    ]
    plan = make_plan(requests, completed=(), queued=())
    assert [(a.resources.placement.world_size, len(a.requests)) for a in plan.arrays] == [
        (1, 12), (2, 12), (4, 12), (8, 12), (12, 12),
    ]  # fmt: skip
    # 12 runs of half an hour on 1, 1, 1, 2, 3 nodes.
    assert node_hours(plan.arrays) == pytest.approx(12 * 0.5 * (1 + 1 + 1 + 2 + 3))


def test_what_is_completed_or_queued_is_not_launched_again() -> None:
    requests = [make_request(1, seed=seed) for seed in range(4)]
    ids = [request.spec.run_id for request in requests]
    plan = make_plan(requests, completed={ids[0]}, queued={ids[1]})
    assert [request.spec.run_id for request in plan.to_launch] == ids[2:]
    assert (plan.completed, plan.queued) == ((ids[0],), (ids[1],))


def test_the_same_point_twice_is_one_run() -> None:
    plan = make_plan([make_request(1), make_request(1)], (), ())
    assert len(plan.to_launch) == 1
    assert plan.repeated == 1


def test_other_wall_limits_are_other_shapes() -> None:
    import dataclasses

    short = make_request(1)
    long = make_request(1, seed=1)
    long = dataclasses.replace(long, resources=dataclasses.replace(long.resources, timeout_minutes=60))
    assert len(make_plan([short, long], (), ()).arrays) == 2
