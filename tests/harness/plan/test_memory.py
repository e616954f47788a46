"""The plan's estimate of GPU memory. tests/models/test_activations.py measures activations."""

from __future__ import annotations

from typing import Any

import pytest
from builders import make_spec
from project import Cli

from harness.core.errors import UserError
from harness.core.spec import ClusterSpec, DatasetSpec, OptimizerSpec, Placement, RunSpec
from harness.plan import memory
from harness.plan.memory import GB, estimate
from models import catalog

TEXT = DatasetSpec("text", "text", 256, 0, 0, (), (), augment=False, context=1024)
ADAM = OptimizerSpec(name="adam", momentum=0.0)
EVERY = ("plain", "allreduce", "zero1", "fsdp")


def gpt2(strategy: str = "allreduce", gpus: int = 4, batch: int = 2, model: str = "gpt2_xl", **changes: Any) -> RunSpec:
    on_gpus = {"gpus": gpus, "placement": Placement(1, gpus), "cluster": ClusterSpec("x", "cuda", 1)}
    batches = {"global_batch": batch * gpus, "batch_per_gpu": batch}
    run = {"model": model, "dataset": TEXT, "optimizer": ADAM, "strategy": strategy, **on_gpus, **batches}
    return make_spec(**{**run, **changes})


def test_strategy_determines_weights_gradients_and_optimiser_state_per_gpu() -> None:
    layers = catalog.network("gpt2_xl").layers(0, 256, 1024)
    whole = 4 * catalog.parameters(layers)
    block = 4 * catalog.parameters((catalog.TransformerBlock(1600, 25),))
    # Embedding, last norm and projection are outside the blocks.
    gathered = block + 4 * (256 * 1600 + 1024 * 1600 + 2 * 1600 + 256 * 1600)
    state = {"plain": 2 * whole, "allreduce": 2 * whole, "local_sgd": 2 * whole, "ps_sync": 0, "zero1": whole / 2}
    for strategy, size in state.items():
        found = estimate(gpt2(strategy))
        assert (found.parameters, found.gradients, found.optimizer) == (whole, whole, size), strategy
    found = estimate(gpt2("fsdp"))
    assert (found.parameters, found.gradients, found.optimizer) == (whole / 4 + gathered, whole / 4, whole / 2)


@pytest.mark.parametrize(
    ("optimizer", "states"),
    [
        (OptimizerSpec(momentum=0.9), 1),
        (OptimizerSpec(momentum=0.0), 0),
        (OptimizerSpec(name="lars", momentum=0.0), 1),
        (ADAM, 2),
        (OptimizerSpec(lr_end_samples=9, lookahead_steps=5, lookahead_decay=0.5), 2),
    ],
    ids=["sgd", "sgd without momentum", "lars", "adam", "slow weights"],
)
def test_an_optimiser_keeps_so_many_numbers_for_each_parameter(optimizer: OptimizerSpec, states: int) -> None:
    found = estimate(gpt2(optimizer=optimizer))
    assert found.optimizer == states * found.parameters


def test_activations_grow_with_the_batch_of_a_gpu_and_mixed_precision_has_copies_of_the_weights() -> None:
    two, four = estimate(gpt2(batch=2)), estimate(gpt2(batch=4))
    assert four.activations == 2 * two.activations == 4 * two.activations_per_sample
    assert four.fixed == two.fixed
    half = estimate(gpt2(precision="bf16"))
    halved = estimate(gpt2(precision="fp16", framework_options={"half_weights": True}))
    assert (2 * halved.fixed, halved.weight_copies) == (estimate(gpt2()).fixed, 0)
    assert two.weight_copies == 0
    assert half.weight_copies == pytest.approx(half.parameters / 2, rel=0.01)  # all but vectors and the embedding
    assert half.fixed == two.fixed
    assert half.activations < two.activations


def test_too_large_runs_are_rejected_with_alternatives() -> None:
    numbers = r"gpus=4 does not fit: parameters 5\.5, gradients 5\.5 and the optimiser's state 11\.0 are 22\.0 GB"
    with pytest.raises(UserError, match=numbers + r".* has 16 GB .*strategy=fsdp on gpus=4 would need about 15\.0 GB"):
        memory.check(gpt2(), 16, EVERY)
    with pytest.raises(UserError, match=r"strategy=fsdp on gpus=4 would .* included: 2 samples per GPU would$"):
        memory.check(gpt2(batch=8), 16, EVERY)
    with pytest.raises(UserError, match=r"strategy=fsdp on gpus=2 would .* included: one sample per GPU would$"):
        memory.check(gpt2("fsdp", gpus=1), 16, EVERY)
    with pytest.raises(UserError, match="use a smaller model, or GPUs with more memory"):
        memory.check(gpt2(), 16, ("plain", "allreduce"))


def test_recommended_alternatives_are_accepted() -> None:
    for gigabytes in range(6, 22):
        with pytest.raises(UserError) as refused:
            memory.check(gpt2(), gigabytes, EVERY)
        words = str(refused.value).split("cluster.gpu_memory_gb); ")[1].split()
        strategy, gpus = words[0].split("=")[1], int(words[2].split("=")[1])
        better = gpt2(strategy, gpus)
        memory.check(better, gigabytes, EVERY)
        assert memory.fits(better, gigabytes) == ("per GPU would" not in str(refused.value))


def test_runs_too_large_only_by_activations_may_be_tried() -> None:
    spec = gpt2("fsdp", batch=16)
    memory.check(spec, 16, EVERY)
    assert not memory.fits(spec, 16)
    assert memory.sentence(spec, 16).endswith("of 16 GB: may not fit: 2 samples per GPU would")
    assert memory.fits(gpt2("fsdp", batch=2), 16)
    assert not memory.fits(gpt2("fsdp", batch=3), 16)
    assert memory.sentence(gpt2("fsdp"), 16).endswith("of 16 GB: fits")
    assert memory.fits(spec, None)
    assert " of " not in memory.sentence(spec, None)


def test_the_parts_add_up() -> None:
    found = estimate(gpt2("fsdp", precision="bf16"))
    parts = found.parameters + found.gradients + found.optimizer + found.weight_copies + found.activations
    assert found.total == parts
    assert f"about {parts / GB:.1f} GB per GPU (parameters" in memory.sentence(gpt2("fsdp", precision="bf16"), None)


@pytest.mark.torch
def test_the_plan_says_what_each_point_needs_and_warns_of_what_may_not_fit(cli: Cli, torch_python: Any) -> None:
    on_v100 = ("cluster=iris", "model=gpt2", "dataset=synthetic_text", "gpus=4", "plan_only=true")
    done = cli("harness", "-m", *on_v100, "strategy=allreduce,fsdp", "batch=2,64")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(" of 16 GB: fits") == 2
    assert done.stdout.count(" of 16 GB: may not fit: ") == 2
    assert "a sample of data set 'synthetic_text' is one sequence of 1024 tokens" in done.stdout
    refused = cli("harness", *on_v100, "cluster.gpu_memory_gb=1", "optimizer.name=adam")
    assert refused.returncode == 2
    assert "strategy=zero1" in refused.stderr or "strategy=fsdp" in refused.stderr
    assert refused.stderr.count("\n") == 1
