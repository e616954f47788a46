"""The JAX adapter, run in the JAX environment (the other halves are in tests/worker/sides/jax_side.py and
tests/worker/sides/jax_scaling_side.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from environments import in_environment

from harness.core import determinism
from models import catalog


def in_jax(function: str, *arguments: Any) -> Any:
    return in_environment("jax", "jax_side", function, *arguments)


def in_scaling(function: str, *arguments: Any) -> Any:
    return in_environment("jax", "jax_scaling_side", function, *arguments)


@pytest.mark.parametrize("name", ["resnet20", "resnet50"])
def test_the_network_is_that_of_the_catalogue(name: str) -> None:
    built = in_jax("describe", name)
    assert built.pop("parameters") == catalog.parameters(catalog.network(name).layers(3, 10, 64))
    assert built == {"logits": [2, 10], "statistics": True, "layout": True}


def test_asking_for_a_gpu_where_there_is_none_is_an_error_and_no_fall_back() -> None:
    message = in_jax("refuses_cpu_instead_of_gpu")
    if message == "accepted":
        pytest.skip("JAX sees a GPU here")
    assert "asks for device cuda" in message
    assert "cluster.device=cpu" in message


def test_a_step_is_pytorchs_sgd() -> None:
    # fp32 rounding over four steps.
    assert in_jax("step_by_hand") < 1e-5


def test_a_step_takes_the_memory_of_the_state_that_it_is_given() -> None:
    found = in_jax("donated")
    assert found["gone"]
    assert found["reused"] == 1


def test_gradients_are_the_same_computed_once_more() -> None:
    assert in_jax("gradients_again") < 1e-5


def test_the_optimiser_without_nesterov() -> None:
    # v = 1 + 0.5 x 1 = 1.5, w = 1 - 0.15; then v = 0.9 x 1.5 + 1 + 0.5 x 0.85 = 2.775, w = 0.85 - 0.2775.
    assert in_jax("optimizer_without_nesterov") == pytest.approx([0.85, 0.5725], rel=1e-6)


def test_batch_norm_is_pytorchs() -> None:
    # fp32 rounding. The biased variance would be off by 0.1 x 9 / 35.
    assert max(in_jax("batch_norm").values()) < 1e-5


def test_logits_of_any_number_of_images_are_one_compilation() -> None:
    said = in_jax("logits_of_any_number")
    assert said.pop("difference") < 1e-5
    assert said == {"shape": [19, 10], "none": [0, 10], "compilations": 1}


@pytest.mark.parametrize(
    ("precision", "kind", "asked"),
    # HIGHEST: no TF32 on GPUs that have it. HIGH: TF32.
    [
        ("fp32", "f32", ["HIGHEST"]),
        ("tf32", "f32", ["HIGH"]),
        ("bf16", "bf16", ["DEFAULT"]),
        ("fp16", "f16", ["DEFAULT"]),
    ],
)
def test_every_convolution_and_product_is_asked_for_in_the_precision_of_the_run(
    precision: str, kind: str, asked: list[str]
) -> None:
    said = in_jax("computed_in", precision)
    # 3 convolutions and a fully connected layer, forward and for both gradients, none for the images.
    assert said == {"operations": 3 * 4 - 1, "types": [kind], "precisions": asked}


def test_bf16_computes_in_bf16_and_keeps_everything_in_fp32() -> None:
    said = in_jax("bfloat16")
    assert said["dtypes"] == ["float32"]
    assert said["differs"]
    # bf16 has 8 bits of precision.
    assert said["cosine"] > 0.9
    assert said["loss"] < 0.1


def test_fp16_skips_steps_that_overflow_and_otherwise_is_sgd() -> None:
    said = in_scaling("half_precision")
    # A skipped step changes neither weights nor momentum: later steps equal those of the reference.
    assert said["skipped"] == [0, 4]
    assert said["moved"] == [1, 2, 3, 5, 6, 7]
    assert said["scales"]
    # fp32 rounding over six steps.
    assert said["error"] < 1e-5
    # fp16 has 11 bits of precision, and some ReLUs switch. Measured: 0.9985; bf16: 0.992.
    assert said["cosine"] > 0.995
    assert said["loss"]
    assert said["dtypes"] == ["float32"]


@pytest.mark.parametrize("strategy", ["allreduce", pytest.param("mpi", marks=pytest.mark.whole)])
def test_all_ranks_skip_a_step_in_which_one_overflows(strategy: str) -> None:
    said = in_scaling("overflow_of_one_rank", strategy)
    assert not any(said.pop("codes"))
    assert said == {
        "finite": [[True, False, True]] * 2,
        "moved": [[True, False, True]] * 2,
        "scales": [[2.0**16, 2.0**15, 2.0**15]] * 2,
        "same": True,
    }


@pytest.mark.whole  # in CI, the other frameworks
def test_deterministic_runs_are_equal_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in determinism.VARIABLES["jax"].items():  # as a rank sets them before loading anything
        monkeypatch.setenv(name, value)
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    runs = [in_jax("deterministic", str(folder), 0) for folder in folders]
    runs.append(in_jax("deterministic", str(folders[0]), 3))
    assert runs[1:] == [runs[0]] * 2


def test_xla_knows_the_flag_of_a_deterministic_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """XLA aborts a process with unknown XLA_FLAGS."""
    monkeypatch.setenv("XLA_FLAGS", determinism.VARIABLES["jax"]["XLA_FLAGS"])
    assert in_jax("optimizer_without_nesterov")
    monkeypatch.setenv("XLA_FLAGS", determinism.VARIABLES["jax"]["XLA_FLAGS"].replace("_ops", "_opss"))
    with pytest.raises(AssertionError, match="Unknown flag"):
        in_jax("optimizer_without_nesterov")


@pytest.mark.parametrize(
    ("precision", "scaling"),
    # The state of fp32 is part of that of fp16.
    [pytest.param("fp32", 0, marks=pytest.mark.whole), ("fp16", 2)],
)
def test_what_was_saved_goes_on_bit_by_bit(precision: str, scaling: int) -> None:
    # 11 parameters, as many velocities, 3 x 2 statistics; the scale and the steps since it changed.
    arrays = 2 * 11 + 2 * 3 + scaling
    assert in_jax("continues_exactly", precision) == {"equal": True, "steps": [5, 5], "arrays": arrays}


@pytest.mark.quiet
@pytest.mark.parametrize("cpus", [1, 2])
def test_a_rank_computes_with_as_many_threads_as_it_has_cores(cpus: int) -> None:
    said = in_jax("busy_threads", cpus)
    assert said["said"] == said["computing"] == cpus
    # All of them work, and nothing else does: with one core, two threads alternate.
    assert said["smallest_share"] > 0.2 / cpus
    assert said["cores"] < 1.15 * cpus


@pytest.mark.parametrize("strategy", ["allreduce", pytest.param("mpi", marks=pytest.mark.whole)])
def test_ranks_have_the_mean_of_their_gradients(strategy: str) -> None:
    said = in_jax("exchanges", strategy)
    assert not any(said.pop("codes"))
    # fp32 rounding of gradients computed by the threads of two processes, and of one.
    assert said.pop("error_of_means") < 1e-5
    assert said == {
        "world_sizes": [2, 2],
        "same_weights": True,
        "same_weights_without_exchange": False,
        "own_gradients_without_exchange": True,
        "totals": [[2.0, 2.0**24, 1.0]] * 2,
        "statistics_of_rank_0": True,
        "statistics_were_apart": True,
    }
