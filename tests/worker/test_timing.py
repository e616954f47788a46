"""The time of a block: which calls lie between which readings of the clock."""

from __future__ import annotations

import time

import pytest

from harness.worker.timing import timed

STEP, FENCE = 0.002, 0.02


class Device:
    """A device that lags behind the host: the fence waits for its remaining work. Sleeps never end early, so that the
    bounds hold on a busy machine too."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def step(self) -> None:
        self.calls.append("step")
        time.sleep(STEP)

    def fence(self) -> None:
        self.calls.append("fence")
        time.sleep(FENCE)


@pytest.mark.parametrize("n", [1, 2, 5])
def test_the_closing_fence_is_in_the_block_and_not_in_the_time_to_issue_it(n: int) -> None:
    device = Device()
    found = timed(device, device.step, n)  # type: ignore[arg-type]
    assert device.calls == ["fence", *["step"] * n, "fence"]
    assert found.seconds >= found.issue_seconds + FENCE
    assert found.issue_seconds >= found.first_issue_seconds + (n - 1) * STEP
    assert found.first_issue_seconds >= STEP
