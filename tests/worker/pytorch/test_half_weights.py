"""framework.options.half_weights=true: weights in fp16 (the other half is in tests/worker/sides/half_side.py)."""

from __future__ import annotations

import pytest
from environments import in_environment

pytestmark = pytest.mark.torch


def test_half_weights_are_autocast_without_copies_and_their_step_computes_in_fp32() -> None:
    found = in_environment("pytorch", "half_side", "parts")
    assert found["dtypes"] == ["torch.float16", "torch.float32"]
    assert found["norms"] == ["torch.float32"]
    assert found["gradients"]
    assert found["as_autocast"], "bit for bit: fp32 weights that fp16 holds exactly have the same gradients"
    first, skipped, third = found["units"]
    assert skipped == -1, "an infinite gradient leaves weights and momentum as they were"
    # Rounding to nearest gives at most half a unit; rounding an intermediate sum would exceed it.
    assert max(first, third) < 0.51


def test_half_weights_on_a_gpu_are_rounded_once_in_a_step() -> None:
    units = in_environment("pytorch", "half_side", "on_a_gpu")
    if units is None:
        pytest.skip("torch sees no GPU here: its fused step in fp16 is wrong on CPUs (pytorch issue 191763)")
    assert units < 0.51


def test_half_weights_on_a_cpu_are_refused() -> None:
    assert "half_weights=true needs a GPU" in in_environment("pytorch", "half_side", "on_a_cpu")
