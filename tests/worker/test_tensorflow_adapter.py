"""The adapters of TensorFlow and Keras, run in their environment (the other halves are in
tests/worker/sides/tensorflow_side.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from environments import in_environment

from harness.worker.loss_scale import INITIAL_SCALE
from models import catalog

FRAMEWORKS = ["tensorflow", "keras"]


def in_tensorflow(function: str, *arguments: Any) -> Any:
    return in_environment("tensorflow", "tensorflow_side", function, *arguments)


def test_what_both_share_is_what_the_catalogue_and_the_loop_ask_for() -> None:
    names = ["resnet20", "resnet50"]
    said = in_tensorflow("shared", names)
    for name, network in zip(names, said["networks"], strict=True):
        parameters = catalog.parameters(catalog.network(name).layers(3, 10, 64))
        assert network == {"parameters": parameters, "statistics": True, "initial": True, "logits": [2, 10]}, name
    if said["cuda"] != "accepted":  # which it is where TensorFlow sees a GPU
        assert "asks for device cuda" in said["cuda"]
        assert "cluster.device=cpu" in said["cuda"]
    # fp32 rounding; the biased variance would be off by 1 / 8192 of 0.1 x a variance of about 2.
    assert max(said["statistics"]) < 2e-6
    assert said["any_number"] == {"shape": [9, 10], "close": True, "traces": 1}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_rank_alone_does_what_its_verbs_promise(framework: str) -> None:
    said = in_tensorflow("alone", framework)
    # One compute thread.
    assert said["cores"] < 1.15
    # PyTorch's SGD, with a ramp and weight decay: fp32 rounding over four steps.
    assert said["sgd"] < 2e-5
    assert said["continued"] == {"weights": True, "loss": True, "logits": True, "steps": 5, "traces": 1, "scales": None}
    # The network computes in bf16, and nothing is stored in it.
    assert said["bf16"] == {
        "types": ["float32"],
        "computes_in": "bfloat16",
        "close": True,
        "loss": True,
        "multiplies": "bfloat16",
    }
    assert said["jit"]


@pytest.mark.parametrize("framework", ["tensorflow", pytest.param("keras", marks=pytest.mark.whole)])
def test_fp16_scales_the_loss_and_skips_steps_that_overflow(framework: str) -> None:
    said = in_tensorflow("alone_in_fp16", framework)
    assert said["fp16"] == {
        "types": ["float32"],
        "computes_in": "float16",
        "close": True,
        "loss": True,
        "multiplies": "float16",
    }
    continued = {"weights": True, "loss": True, "logits": True, "steps": 5, "traces": 1}
    assert said["continued"] == {**continued, "scales": [[2.0**9, 5]] * 2}
    for compiled in ("plain", "compiled"):
        # (finite, scale follows the rule) of each step.
        steps = [[False, True], [True, True], [True, True], [False, True], [True, True], [True, True]]
        expected = {"initial": [INITIAL_SCALE, 0], "scales": steps, "kept": True, "close": True}
        assert said[compiled] == expected, compiled
    assert said["branches"][1] == said["branches"][0]


@pytest.mark.parametrize(("framework", "jit_compile"), [("tensorflow", True), ("keras", False)])
def test_deterministic_runs_are_equal_bit_for_bit(framework: str, jit_compile: bool, tmp_path: Path) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    runs = [in_tensorflow("deterministic", framework, str(folder), 0, jit_compile) for folder in folders]
    runs.append(in_tensorflow("deterministic", framework, str(folders[0]), 3, jit_compile))
    assert runs[0]["held"]
    assert runs[1:] == [runs[0]] * 2


# In CI, two nodes train with the others.
@pytest.mark.parametrize(
    "strategy", ["horovod", *(pytest.param(s, marks=pytest.mark.whole) for s in ("allreduce", "mpi"))]
)
def test_ranks_have_the_mean_of_their_gradients_and_skip_a_step_together(strategy: str) -> None:
    said = in_environment("tensorflow", "tensorflow_exchange_side", "together", strategy)
    assert not any(said.pop("codes"))
    assert len(said) == (6 if strategy == "horovod" else 4), "with Horovod, also compressed gradients"
    for name, found in said.items():
        if name.startswith("exchange"):
            assert found == {
                "world_sizes": [2, 2],
                "means": True,
                "same_weights": True,
                "same_weights_without_exchange": False,
                "totals": [[2.0, 2.0**24, 1.0]] * 2,
                "same_losses": False,
                "statistics_were_apart": True,
                "statistics_of_rank_0": True,
            }, name
        else:
            assert found == {
                "skipped": [True, True],
                "scales": [[2.0**7, 2.0**7]] * 2,
                "moved": [True, True],
                "finite": True,
                "same_weights": True,
            }, name
