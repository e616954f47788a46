from __future__ import annotations

import dataclasses

import pytest
from builders import make_request, make_site

from harness.core.errors import UserError
from harness.core.placement import place
from harness.core.spec import Placement
from harness.plan.plan import make_plan, node_hours


@pytest.mark.parametrize(
    ("gpus", "nodes", "ranks"),
    # The published study's counts on 4-GPU nodes, and 6, which does not fill its nodes.
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


def test_completed_or_queued_runs_are_not_launched_again() -> None:
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


def test_order_within_a_shape_is_random_but_reproducible() -> None:
    requests = [make_request(gpus=2, seed=seed) for seed in range(30)]
    (array,) = make_plan(requests, (), ()).arrays
    seeds = [request.spec.seed for request in array.requests]
    assert sorted(seeds) == list(range(30))
    assert seeds != list(range(30))
    (again,) = make_plan(list(reversed(requests)), (), ()).arrays
    assert again.requests == array.requests


def test_failed_runs_are_left_out_where_they_are_not_to_be_tried_again() -> None:
    requests = [make_request(seed=0), make_request(seed=1)]
    failed = requests[1].spec.run_id
    plan = make_plan(requests, (), (), failed=[failed])
    assert [request.spec.seed for request in plan.to_launch] == [0]
    assert plan.failed == (failed,)


def test_packed_sizes_form_one_job_of_largest_size_and_summed_time() -> None:
    sizes = {1: 1, 2: 1, 4: 1, 8: 2, 12: 3}
    requests = [
        make_request(gpus=gpus, nodes=nodes, seed=seed, global_batch=8 * gpus)
        for gpus, nodes in sizes.items()
        for seed in (0, 1)
    ]
    (array,) = make_plan(requests, (), (), pack=True).arrays
    assert array.packed
    assert array.resources.placement == Placement(3, 4)
    assert array.resources.timeout_minutes == 5 * 30
    assert [sorted(r.spec.gpus for r in job) for job in array.jobs] == [list(sizes)] * 2
    assert [len({r.spec.seed for r in job}) for job in array.jobs] == [1, 1]
    # Two jobs of 2.5 h on 3 nodes of 4 GPUs.
    assert array.worst_case_node_hours == 15
    assert array.worst_case_gpu_hours == 60


def test_nodes_for_servers_alone_cost_what_other_nodes_do() -> None:
    request = make_request(gpus=8, nodes=2)
    apart = dataclasses.replace(request, resources=dataclasses.replace(request.resources, server_nodes=3))
    (array,) = make_plan([apart], (), ()).arrays
    assert array.worst_case_node_hours == (2 + 3) * 0.5
    assert array.worst_case_gpu_hours == (2 + 3) * 4 * 0.5
    here = dataclasses.replace(apart, resources=dataclasses.replace(apart.resources, scheduler="local"))
    (array,) = make_plan([here], (), ()).arrays
    assert array.worst_case_node_hours == 2 * 0.5  # there are no server nodes


def test_packing_takes_the_largest_node_count_and_the_largest_node() -> None:
    # 12 GPUs on 8-GPU nodes are 2 x 6, and 8 are 1 x 8.
    requests = [
        make_request(gpus=12, nodes=2, global_batch=96),
        make_request(gpus=8, nodes=1, global_batch=64),
    ]
    (array,) = make_plan(requests, (), (), pack=True).arrays
    assert array.resources.placement == Placement(2, 8)


def test_worst_case_counts_every_possible_start() -> None:
    request = make_request(gpus=8, nodes=2)
    again = dataclasses.replace(request, site=make_site(max_requeues=2, max_restarts=1))
    (array,) = make_plan([again], (), ()).arrays
    assert array.starts == 4
    assert array.worst_case_node_hours == 4 * 2 * 0.5
