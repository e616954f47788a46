"""The options matrix of PyTorch (see check.py); pytorch_side.py has the reference."""

from __future__ import annotations

import pytest
from options import check

pytestmark = [pytest.mark.torch, pytest.mark.timeout(3600)]

SIDE = check.Side(
    framework="pytorch",
    environment="pytorch",
    # Rounding: 1e-5; occasionally it moves an activation near 0 across a ReLU, and the difference grows.
    bound=5e-2,
    loose={
        # Compiled convolutions and layers divided between ranks round in other places.
        "precision=bf16": 0.3,
        "precision=fp16": 0.2,
        # Gradients are sent with 11 and 8 bits; adam divides by their magnitudes. Measured: 0.06, 0.08.
        "strategy.options.compress=fp16": 0.1,
        "strategy.options.compress=bf16": 0.15,
        # Two uncompressed steps, then gradients of rank 2. Measured: 0.27; with fp16 0.37.
        "strategy.options.compress=powersgd": 0.5,
    },
    # The servers receive gradients in another order than the reference, which takes turns. Measured: up to 0.45.
    by_strategy={"ps_async": 0.7, "ssp": 0.7},
    left_out={
        "precision=tf32": "TF32 is a mode of GPUs' tensor cores; a CPU would compute in fp32",
        "framework.options.cuda_graph=true": "CUDA graphs exist on GPUs only",
        "framework.options.half_weights=true": "torch's fused step in fp16 is wrong on CPUs (test_half_weights.py)",
        "framework.options.compile_mode=reduce-overhead": "CUDA graphs exist on GPUs only",
        "framework.options.compile_mode=max-autotune": "CUDA graphs exist on GPUs only",
        "data.pipeline=dali": "it reads image files only, and decodes them to other pixels (test_data_dali.py)",
        "strategy.options.placement=own_nodes": "its servers are on further nodes (test_parameter_servers.py)",
    },
    slow=("framework.options.compile=true",),
    # Measured: 6.3e-2, as the reference from initial weights 1e-7 apart. A learning rate 10 % too large: 0.15.
    flips={"framework.options.compile=true": 0.1},
)


# One of each family whose gradients PyTorch sends.
# `make test-options` trains all strategies. The others are trained with their usual options in
# tests/worker: test_pytorch_adapter.py, test_pytorch_strategies.py, test_pytorch_model_parallel.py,
# test_pytorch_servers.py.
SELECTED = ("allreduce", "fsdp", "pipeline", "ps_sync")


def test_a_selection_trains_what_the_reference_trains() -> None:
    check.assert_near_reference(SIDE, [run for run in SIDE.selection() if run.spec.strategy in SELECTED])


@pytest.mark.parametrize(("strategy", "gpus"), check.every(SIDE))
def test_every_pair_of_options_trains_what_the_reference_trains(strategy: str, gpus: int) -> None:
    check.assert_near_reference(SIDE, SIDE.runs(strategy, gpus))


@pytest.mark.whole
def test_every_bound_tells_defects_from_the_reference() -> None:
    """Defect `layout`, gradients of a flat buffer in the wrong memory layout, was once a real bug."""
    every = ("layout", "sum", "alone", "momentum", "rate", "late")
    gross = ("layout", "sum", "alone")
    defects = {
        "": every,
        "precision=bf16": gross,
        "precision=fp16": gross,
        "strategy.options.compress=fp16": (*gross, "momentum", "late"),
        "strategy.options.compress=bf16": (*gross, "momentum", "late"),
        "strategy.options.compress=powersgd": gross,
        "ps_async": ("layout",),
        "ssp": ("layout",),
    }
    runs = [check.first(SIDE.runs("allreduce", 2), loose) for loose in ("", *SIDE.loose)]
    runs += [SIDE.runs(strategy, 2)[0] for strategy in SIDE.by_strategy]
    compiled = (run for run in SIDE.runs("allreduce", 2) if not run.loose and run.spec.framework_options["compile"])
    runs.append(next(compiled))
    check.assert_bounds_tell_defects(SIDE, runs, defects)


def test_values_left_out_exist() -> None:
    check.assert_left_out_is_there(SIDE)
