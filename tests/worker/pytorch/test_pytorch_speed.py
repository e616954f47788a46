"""Options that speed up a PyTorch step, as far as they work without a GPU (other half:
tests/worker/sides/speed_side.py)."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from environments import in_environment
from project import Cli

from harness.config.schema import CompileMode

pytestmark = pytest.mark.torch

MB = 2**20


@pytest.fixture(scope="module")
def said() -> dict[str, Any]:
    found: dict[str, Any] = in_environment("pytorch", "speed_side", "on_this_machine")
    return found


def test_nothing_in_a_step_waits_for_the_device(said: dict[str, Any]) -> None:
    waits = said["waits"]
    # Loss scaling reads whether a gradient is infinite, unless the optimiser's kernel does: the counter works.
    assert waits.pop("sgd fp16") > 0
    assert set(waits.values()) == {0}, waits


def test_a_fused_optimiser_learns_the_same(said: dict[str, Any]) -> None:
    # Relative to how far four steps moved the weights. Measured: 0 (sgd) and 3e-3 (adam, which divides by the size of
    # each gradient and so amplifies rounding of those near 0). A different rule would give about 1.
    assert said["fused_apart"]["sgd"] < 1e-4
    assert said["fused_apart"]["adam"] < 2e-2


def test_labels_are_smoothed_as_the_formula_says(said: dict[str, Any]) -> None:
    loss, expected = said["smoothed"]
    assert loss == pytest.approx(expected, rel=1e-5)  # fp32; without smoothing the value differs


def test_convolutions_have_onednn(said: dict[str, Any]) -> None:
    assert said["onednn"]


def test_ddp_has_the_buckets_that_it_is_asked_for(said: dict[str, Any]) -> None:
    default, static = said["ddp"]["default"], said["ddp"]["static"]
    assert default["buckets"] == static["buckets"]
    assert sum(default["buckets"]) == default["gradient_bytes"]
    assert (default["view"], default["static"]) == (True, False)
    assert (static["view"], static["static"]) == (False, True)


def test_ddp_has_a_first_bucket_of_the_size_that_it_is_asked_for(said: dict[str, Any]) -> None:
    if "small" not in said["ddp"]:
        pytest.skip("this torch has no argument for the first bucket's size: it needs 2.13")
    small = said["ddp"]["small"]
    assert sum(small["buckets"]) == small["gradient_bytes"]
    # A bucket ends with the parameter that fills it: the first is the last layer, 2,600 bytes, and the next one.
    assert 0.01 * MB <= small["buckets"][0] < 0.2 * MB
    assert len(small["buckets"]) > 3


def test_a_torch_without_an_option_refuses_it_by_name(said: dict[str, Any]) -> None:
    assert re.fullmatch(
        r"strategy\.options\.first_bucket_mb=0\.2 needs torch 2\.13 or newer, and this environment has \S+; leave it "
        r"at null, or use a newer torch",
        said["older torch"],
    )


def test_deterministic_compilation_needs_torch_2_10() -> None:
    version, refused = in_environment("pytorch", "speed_side", "deterministic_compile")
    major, minor = map(int, version.split(".")[:2])
    if (major, minor) >= (2, 10):
        assert refused is None
    else:
        assert f"compile=true needs torch 2.10 or newer, and this environment has {version}" in refused


def test_what_torch_compile_leaves_is_said(said: dict[str, Any]) -> None:
    before, after = said["fallbacks"]
    assert before == []
    assert len(after) == 1
    assert after[0].startswith("torch.compile broke the graph 1 times and ran the rest eagerly: ")


def test_a_network_that_is_compiled_wrongly_is_not_trained() -> None:
    """Up to torch 2.13, inductor lost the gradients of max pooling where it changed the memory format."""
    found = in_environment("pytorch", "compile_side", "compiled_gradients")
    assert found["apart"] < 1e-4
    for error in found["errors"]:
        assert re.match(
            r"torch\.compile of torch \S+ gives wrong gradients for [12] of \d+ weights of this network", error
        )


@pytest.mark.whole
def test_compiled_networks_train_alike_with_a_static_graph_and_in_shards() -> None:
    """Both once ended in a traceback of the check of compiled gradients, or of inductor."""
    found = in_environment("pytorch", "compile_side", "compiled_strategies")
    assert "allreduce" in found
    # Measured: 1.2e-3, from rounding, in both.
    assert all(apart < 1e-2 for apart in found.values()), found


def test_a_deterministic_run_holds_pytorch_to_it() -> None:
    found = in_environment("pytorch", "speed_side", "deterministic")
    assert found["enabled"] == [False, True, True]
    assert found["equal"], "the same seed, the same weights"


def test_the_modes_of_torch_compile_are_those_of_the_configuration() -> None:
    # "lite" compiles only what a network marks, and these mark nothing.
    assert {mode.name for mode in CompileMode} == set(in_environment("pytorch", "speed_side", "modes")) - {"lite"}


@pytest.mark.whole
def test_an_autotuned_network_learns_the_same() -> None:
    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler on the CPU: no g++ on the PATH")
    # Measured: 4.5e-3 in two steps, equal without autotuning. The fp32 gradients of this network on four samples
    # deviate by 1e-3 (NCHW) to 2e-3 (NHWC) from double precision; a different network would give about 1.
    assert in_environment("pytorch", "speed_side", "tuned") < 1e-2


def test_slow_weights_of_all_tensors_at_once_are_those_of_one_after_the_other() -> None:
    assert in_environment("pytorch", "speed_side", "foreach_lookahead") == [True] * 5


def test_horovod_is_told_what_is_asked_for_and_the_run_keeps_it(cli: Cli, torch_python: Path, tmp_path: Path) -> None:
    options = ("fusion_mb=8", "cycle_ms=2.5", "autotune=true")
    done = cli(
        *("harness", "strategy=horovod", "gpus=2", "model=cnn_small", "batch=4", "dataset=synthetic", "measure=smoke"),
        *("optimizer.lr=0.01", "cluster=local", "cluster.device=cpu", *(f"strategy.options.{o}" for o in options)),
    )
    assert "1 completed, 0 failed" in done.stdout, done.stdout + done.stderr
    [written] = (tmp_path / "results" / "scaling" / "runs").glob("*/attempt-1/env.json")
    variables = json.loads(written.read_text(encoding="utf-8"))["variables"]
    assert variables["HOROVOD_FUSION_THRESHOLD"] == str(8 * MB)
    assert variables["HOROVOD_CYCLE_TIME"] == "2.5"
    assert variables["HOROVOD_AUTOTUNE"] == "1"


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_loss_scaling_with_a_fused_optimiser_skips_steps_and_stays_in_its_memory(optimizer: str) -> None:
    found = in_environment("pytorch", "speed_side", "loss_scaling", optimizer)
    moved, scales = found["moved"], found["scales"]
    assert moved[0] is False
    assert moved.count(True) > 4
    # GradScaler's backoff factor is 0.5; it grows after 2,000 steps.
    skipped = [moved[: step + 1].count(False) for step in range(len(moved))]
    assert scales == [2.0 ** (22 - so_far) for so_far in skipped]
    assert found["finite"]
    assert found["in_place"]
    assert found["counters"] in ([], [moved.count(True)]), "skipped steps do not count"


def test_cuda_graphs_are_released_before_the_process_group_is_left() -> None:
    found = in_environment("pytorch", "speed_side", "closing")
    assert found["done"] == ["synchronised", "reset", "reset", "synchronised", "left"]
    assert found["released"]


def test_a_cuda_graph_learns_the_same_and_no_step_synchronises() -> None:
    found = in_environment("pytorch", "speed_side", "on_a_gpu")
    if not found:
        pytest.skip("torch sees no GPU here: CUDA graphs and CUDA's sync debug mode need one")
    assert max(found.values()) < 1e-3, found
