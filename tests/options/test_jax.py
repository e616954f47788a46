"""The options matrix of JAX (see check.py); jax_side.py has the reference."""

from __future__ import annotations

import pytest
from options import check

pytestmark = pytest.mark.timeout(3600)

SIDE = check.Side(
    framework="jax",
    environment="jax",
    # Rounding: 2e-5; up to 6e-2 if it moves an activation across a ReLU, for which initial weights 1e-7 apart suffice.
    # A learning rate 10 % too large: 0.15.
    bound=0.1,
    loose={"precision=bf16": 0.3, "precision=fp16": 0.2},
    by_strategy={"ps_async": 0.8, "ssp": 0.8},
    left_out={
        "precision=tf32": "TF32 is a mode of GPUs' tensor cores; a CPU would compute in fp32",
        "strategy.options.placement=own_nodes": "the servers are processes of further nodes (test_servers_alone.py)",
    },
)


# In CI, tests of the adapter instead: `make test-options` trains these.
@pytest.mark.parametrize(("strategy", "gpus"), check.every(SIDE))
def test_every_pair_of_options_trains_what_the_reference_trains(strategy: str, gpus: int) -> None:
    check.assert_near_reference(SIDE, SIDE.runs(strategy, gpus))


def test_values_left_out_exist() -> None:
    check.assert_left_out_is_there(SIDE)
