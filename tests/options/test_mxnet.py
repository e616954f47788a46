"""The options matrix of MXNet (see check.py); mxnet_side.py has the reference."""

from __future__ import annotations

import pytest
from options import check

pytestmark = pytest.mark.timeout(3600)

SIDE = check.Side(
    framework="mxnet",
    environment="mxnet",
    # Rounding: 2e-5; up to 6e-2 if it moves an activation across a ReLU, for which initial weights 1e-7 apart suffice.
    # A learning rate 10 % too large: 0.15.
    bound=0.1,
    by_strategy={"ps_async": 0.8},
    left_out={"precision=fp16": "MXNet has convolutions in fp16 on GPUs only (test_mxnet_adapter.py)"},
)


# In CI, tests of the adapter instead: `make test-options` trains these.
@pytest.mark.parametrize(("strategy", "gpus"), check.every(SIDE))
def test_every_pair_of_options_trains_what_the_reference_trains(strategy: str, gpus: int) -> None:
    check.assert_near_reference(SIDE, SIDE.runs(strategy, gpus))


def test_values_left_out_exist() -> None:
    check.assert_left_out_is_there(SIDE)
