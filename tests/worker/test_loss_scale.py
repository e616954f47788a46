"""The rule of loss scaling that all frameworks share."""

from __future__ import annotations

from environments import in_environment

from harness.worker.loss_scale import GROWTH_INTERVAL, INITIAL_SCALE


def test_rule_is_that_of_torch_grad_scaler() -> None:
    overflows = [True, True, *[False] * 7, True, *[False] * GROWTH_INTERVAL, False, True, *[False] * 3]
    found = in_environment("pytorch", "loss_scale_side", "scales", overflows, 0)
    ours = [scale for _, scale in found]
    assert ours == [theirs for theirs, _ in found]
    assert ours[:2] == [INITIAL_SCALE / 2, INITIAL_SCALE / 4]
    # Grown after the last step of an interval without overflow, not one step earlier.
    grown = 10 + GROWTH_INTERVAL
    assert (ours[grown - 2], ours[grown - 1]) == (INITIAL_SCALE / 8, INITIAL_SCALE / 4)


def test_scale_never_grows_past_float32() -> None:
    found = in_environment("pytorch", "loss_scale_side", "scales", [False] * (GROWTH_INTERVAL + 1), 2.0**127)
    assert found[-1] == [2.0**127, 2.0**127]
