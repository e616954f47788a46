"""The options matrix of TensorFlow (see check.py); tensorflow_side.py has the reference."""

from __future__ import annotations

import pytest
from options import check

pytestmark = [pytest.mark.timeout(3600)]

SIDE = check.Side(
    framework="tensorflow",
    environment="tensorflow",
    # An activation within rounding of zero may pass a ReLU in only one of the two. Measured: 6e-2 (ResNet-20), 9e-3
    # (CNN), else below 1e-5. A learning rate 10 % too large: 0.12.
    bound=8e-2,
    # Measured: 0.24, 0.12 and 0.03.
    loose={"precision=bf16": 0.5, "precision=fp16": 0.3, "strategy.options.compress=fp16": 8e-2},
    # A rank may finish before the other has traced its step, whereas the reference takes turns. Measured: 0.56.
    by_strategy={"ps_async": 0.7, "ssp": 0.7},
    left_out={
        "precision=tf32": "TF32 is a mode of GPUs' tensor cores; a CPU would compute in fp32",
        "strategy.options.placement=own_nodes": "the servers are processes of further nodes (test_servers_alone.py)",
    },
    slow=("framework.options.jit_compile=true",),
)


# In CI, tests of the adapter instead: `make test-options` trains these.
@pytest.mark.parametrize(("strategy", "gpus"), check.every(SIDE))
def test_every_pair_of_options_trains_what_the_reference_trains(strategy: str, gpus: int) -> None:
    check.assert_near_reference(SIDE, SIDE.runs(strategy, gpus))


def test_values_left_out_exist() -> None:
    check.assert_left_out_is_there(SIDE)
