"""Fused optimisers of PyTorch (the other half is in tests/worker/sides/fused_side.py)."""

from __future__ import annotations

from pathlib import Path

import pytest
from environments import in_environment, trains_on_cpus
from project import Cli
from studies import UNPROBED, logged, run_dirs

pytestmark = pytest.mark.torch


# test_pytorch_speed.py trains with a first step that is skipped, too.
@pytest.mark.whole
def test_fused_sgd_is_unfused_sgd_where_the_loss_scaler_skips_the_first_step() -> None:
    found = in_environment("pytorch", "fused_side", "skipped_first_step")
    for factor, said in found.items():
        assert said["skipped"] == [True, True], factor
        assert said["equal"], factor
        assert said["momentum_equal"], factor
        # The kernel fuses multiply and add for the last elements of an array, which do not fill a vector register.
        # Uninitialised momentum: NaN.
        assert said["apart"] < 1e-6, factor


def test_fused_sgd_resumes_from_its_checkpoint_and_from_older_ones() -> None:
    assert in_environment("pytorch", "fused_side", "continues") == {
        "as saved": True,
        "contiguous": True,
        "without": True,
    }


def test_gradients_in_another_layout_than_their_weights_are_refused_in_the_first_step_only() -> None:
    first, second = in_environment("pytorch", "fused_side", "layouts")
    assert "the gradient of parameter 0 has strides" in first
    assert "use framework.options.fused=false" in first
    assert second == "", "what is checked in every step costs time in every step"


def test_fused_with_horovod_in_channels_last_is_unfused_alone() -> None:
    # Rounding. Permuted gradients: 0.7.
    assert in_environment("pytorch", "fused_side", "horovod_alone") < 1e-5


def test_verify_tells_a_step_that_is_not_the_optimisers() -> None:
    found = in_environment("pytorch", "fused_side", "first_steps")
    permuted = found.pop("permuted")
    assert permuted["difference"] > 0.5
    assert "the weights after the first step deviate" in permuted["error"]
    assert {said["unchecked"] for said in found.values()} == {None}
    # Rounding, a hundredth of the bound.
    assert max(said["difference"] for said in found.values()) < 1e-4, found


def test_a_verified_run_logs_its_first_step_on_every_rank(cli: Cli, tmp_path: Path, torch_python: Path) -> None:
    strategy = "horovod" if trains_on_cpus("horovod") else "mpi"  # both keep gradients in a buffer of their own
    fused = (f"strategy={strategy}", "framework.options.fused=true", "model=cnn_small", "verify=true")
    done = cli("harness", "gpus=2", "cluster=local", *UNPROBED, *fused)
    assert done.returncode == 0, done.stdout + done.stderr
    [run_dir] = run_dirs(tmp_path)
    for rank in range(2):
        [event] = logged(run_dir, "first_step", rank=rank)
        assert event["unchecked"] is None
        assert event["difference"] < 1e-4
