"""The options matrix of MXNet: check.py says what it is, mxnet_side.py has its reference."""

from __future__ import annotations

import pytest
from options import check

pytestmark = pytest.mark.timeout(3600)

SIDE = check.Side(
    framework="mxnet",
    environment="mxnet",
    # Rounding: 2e-5; where it moves an activation to the other side of a ReLU, which weights that start 1e-7 apart are
    # enough for, up to 6e-2. A learning rate that is 10 % too large: 0.15.
    bound=0.1,
    by_strategy={"ps_async": 0.8},
    left_out={"precision=fp16": "MXNet has convolutions in fp16 on GPUs only (test_mxnet_adapter.py)"},
)


# Of the others, `make test-options` trains more than these.
SELECTED = ("plain", "allreduce", "horovod", "ps_sync")


def test_a_selection_trains_what_the_reference_trains() -> None:
    check.assert_near_reference(SIDE, [run for run in SIDE.selection() if run.spec.strategy in SELECTED])


@pytest.mark.parametrize(("strategy", "gpus"), check.every(SIDE))
def test_every_pair_of_options_trains_what_the_reference_trains(strategy: str, gpus: int) -> None:
    check.assert_near_reference(SIDE, SIDE.runs(strategy, gpus))


def test_what_is_left_out_is_there() -> None:
    check.assert_left_out_is_there(SIDE)
