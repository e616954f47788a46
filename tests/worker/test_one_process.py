"""Synchronous strategies against one process with the global batch: the same samples in the same order lead to the same
weights, up to rounding (other half: tests/worker/sides/global_batch_side.py)."""

from __future__ import annotations

from typing import Any

import pytest
from environments import in_environment, trains_on_cpus
from project import PROJECT

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]

# Relative to how far one process moved in four steps, or to the norm of its first gradients. Measured on CPUs with four
# ranks: 8e-7 and 1.5e-7, fp32's rounding of sums in another order; ten times that for other processors.
WEIGHTS, GRADIENTS = 1e-5, 2e-6
# Averages, and rounds, weights, which move little: measured 4e-6.
WEIGHTS_BY_AVERAGE = 5e-5

PYTORCH: list[tuple[str, dict[str, Any], float]] = [
    ("allreduce", {"bucket_mb": None}, WEIGHTS),
    ("allreduce", {"bucket_mb": 0.2, "overlap": False}, WEIGHTS),
    ("hierarchical", {"bucket_mb": 0.2}, WEIGHTS),
    # 16 samples x (128 + 256) numbers are fewer than 2 x 128 x 256, so the hidden layer sends factors.
    ("hybrid", {"bucket_mb": None}, WEIGHTS),
    ("zero1", {"bucket_mb": None}, WEIGHTS),
    ("local_sgd", {"sync_every": 1}, WEIGHTS_BY_AVERAGE),
    ("ps_sync", {"servers": None}, WEIGHTS),
    ("fsdp", {}, WEIGHTS),
    ("horovod", {"controller": "gloo", "compress": "none"}, WEIGHTS),
]
# Gradients rounded to 8 bits in messages, which the bounds must detect.
ROUNDED = ("allreduce", {"bucket_mb": None, "compress": "bf16"})


def against_one_process(nodes: int, per_node: int, cases: list[Any], mpirun: bool = False) -> list[dict[str, Any]]:
    side = ("pytorch", "global_batch_side", "against_one_process")
    said: list[dict[str, Any]] = in_environment(*side, nodes, per_node, cases, mpirun, timeout_seconds=600)
    return said


def test_four_ranks_on_two_nodes_learn_what_one_process_does() -> None:
    cases = [case for case in PYTORCH if trains_on_cpus(case[0])]
    *found, rounded = against_one_process(2, 2, [*(case[:2] for case in cases), ROUNDED])
    for (strategy, options, bound), said in zip(cases, found, strict=True):
        case = f"{strategy} {options}: {said}"
        assert said["started_equal"], case
        assert said["gradients_apart"] < GRADIENTS, case
        assert said["apart"] < bound, case
    assert rounded["gradients_apart"] > 100 * GRADIENTS
    assert rounded["apart"] > 10 * WEIGHTS_BY_AVERAGE


@pytest.mark.whole  # in CI, over gloo, and sums over MPI
def test_ranks_over_mpi_learn_what_one_process_does() -> None:
    if not (PROJECT / ".envs" / "pytorch" / "bin" / "mpirun").exists():
        pytest.skip("the PyTorch environment has no MPI of its own: it was built with MPI=system")
    [said] = against_one_process(1, 2, [("mpi", {})], mpirun=True)
    assert said["started_equal"]
    assert said["gradients_apart"] < GRADIENTS
    assert said["apart"] < WEIGHTS
