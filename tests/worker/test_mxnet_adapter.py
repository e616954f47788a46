"""The MXNet adapter, run in the MXNet environment (the other halves are in tests/worker/sides/mxnet_side.py and
tests/worker/sides/mxnet_scaling_side.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from environments import in_environment

from harness.core import determinism
from models import catalog


def in_mxnet(function: str, *arguments: Any) -> Any:
    return in_environment("mxnet", "mxnet_side", function, *arguments)


def in_scaling(function: str, *arguments: Any) -> Any:
    return in_environment("mxnet", "mxnet_scaling_side", function, *arguments)


@pytest.mark.parametrize("name", ["resnet20", "resnet50"])
def test_the_network_is_that_of_the_catalogue(name: str) -> None:
    built = in_mxnet("describe", name)
    assert built["parameters"] == catalog.parameters(catalog.network(name).layers(3, 10, 64))
    assert built["logits"] == [2, 10]


def test_asking_for_a_gpu_where_there_is_none_is_an_error_and_no_fall_back() -> None:
    message = in_mxnet("refuses_cpu_instead_of_gpu")
    if message == "accepted":
        pytest.skip("MXNet sees a GPU here")
    assert "asks for device cuda" in message
    assert "cluster.device=cpu" in message


@pytest.mark.parametrize("nesterov", [False, True])
def test_a_learning_rate_that_changes_leaves_the_optimiser_in_pytorchs_form(nesterov: bool) -> None:
    # fp32 rounding. Without momentum correction 0.3, with NAG's kernel in place 0.07.
    assert in_mxnet("optimizer_by_hand", nesterov) < 1e-6


def test_small_weights_step_together_as_they_do_alone() -> None:
    said = in_mxnet("aggregated")
    # 52 small arrays in groups of at most 45, and one that is large for a CPU.
    assert (said["arrays"], said["calls"]) == (53, 3)
    # fp32 rounding: the kernels multiply in another order.
    assert said["apart"] < 1e-6


@pytest.mark.parametrize("nesterov", [False, True])
def test_a_step_that_overflows_is_skipped_on_the_device(nesterov: bool) -> None:
    said = in_scaling("scaled_by_hand", nesterov)
    # Weights and momenta unchanged bit by bit; the scale and its count follow the rule in Python.
    assert said["still"] == [0, 6]
    assert said["scales"]
    assert said["error"] < 1e-6


def test_fp16_is_that_of_convolutions_and_products_alone() -> None:
    said = in_scaling("half_types")
    assert said["conv weight"] == said["dense weight"] == ["float32"]
    assert said["conv fwd_output"] == said["dense fwd_output"] == said["batchnorm fwd_output"] == ["float16"]
    statistics = [f"batchnorm {name}" for name in ("gamma", "beta", "running_mean", "running_var")]
    assert [said[name] for name in statistics] == [["float32"]] * 4


def test_loss_scaling_changes_no_step_and_skips_those_that_overflow() -> None:
    said = in_scaling("half_precision")
    assert said["finite"] == [True, False, True, True]
    assert said["scale"] == [2.0**16, 2.0**15, 2.0**15, 2.0**15]
    assert said["dtypes"] == ["float32"]
    # Steps that are taken equal those of fp32; on a CPU up to rounding, since the network computes in fp32 there.
    assert min(said["cosine"]) > (0.99 if said["on_gpu"] else 1 - 1e-5)
    assert said["apart"] < (0.2 if said["on_gpu"] else 1e-3)


@pytest.mark.parametrize(
    "strategy",
    [*(pytest.param(name, marks=pytest.mark.whole) for name in ("allreduce", "mpi")), "horovod"],
)
def test_all_ranks_skip_a_step_in_which_one_overflows(strategy: str) -> None:
    said = in_scaling("overflow_of_one_rank", strategy)
    assert not any(said.pop("codes"))
    assert said == {
        "finite": [[True, False, True]] * 2,
        "moved": [[True, False, True]] * 2,
        "scales": [[2.0**16, 2.0**15, 2.0**15]] * 2,
        "same": True,
    }


def test_deterministic_runs_are_equal_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in determinism.VARIABLES["mxnet"].items():  # as a rank sets them before loading anything
        monkeypatch.setenv(name, value)
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    runs = [in_mxnet("deterministic", str(folder), 0) for folder in folders]
    runs.append(in_mxnet("deterministic", str(folders[0]), 3))
    assert runs[1:] == [runs[0]] * 2


@pytest.mark.parametrize(("precision", "scaling"), [("fp32", []), ("fp16", [2.0**16, 5.0])])
def test_what_was_saved_goes_on_bit_by_bit(precision: str, scaling: list[float]) -> None:
    said = in_mxnet("continues_exactly", precision)
    assert said.pop("scaling") == scaling
    assert said == {"equal": True, "steps": [5, 5], "moved": True, "logits_of_any_number": True}


def test_gradients_are_laid_out_as_horovod_and_kvstore_take_them() -> None:
    assert in_mxnet("what_the_exchange_gets") == []


@pytest.mark.parametrize("strategy", ["allreduce", "horovod", pytest.param("mpi", marks=pytest.mark.whole)])
def test_ranks_have_the_mean_of_their_gradients(strategy: str) -> None:
    said = in_mxnet("exchanges", strategy)
    assert not any(said["codes"])
    assert said["world_sizes"] == [2, 2]
    assert said["error_of_means"] < 1e-6 * said["magnitude"]
    assert said["same_weights"]
    assert not said["same_weights_without_exchange"]
    assert said["totals"] == [[2.0, 2.0**24, 1.0]] * 2
    assert said["statistics_of_rank_0"]
    assert said["statistics_were_apart"]
    assert said["left"] == 0


def test_kvstore_lives_and_ends_with_its_rank() -> None:
    assert in_mxnet("kvstore_ends_with_its_rank") == {"started": 2, "ended_by_signal": 0, "left": 0}
