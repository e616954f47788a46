"""The duration of a block when ranks wait for one that does something else."""

from __future__ import annotations

import pytest

from harness.core.measuring.slowest_rank import slowest_seconds


@pytest.mark.parametrize(
    ("parts", "seconds"),
    [
        ([(1.0, 0.0), (1.2, 0.0)], 1.2),
        ([(1.0, 0.5), (1.5, 0.0)], 1.0),  # the second one waits while the first one saves
        ([(1.0, 0.5), (1.1, 0.5)], 1.1),
        ([(1.0, 0.5), (1.7, 0.0)], 1.2),
    ],
)
def test_waiting_for_what_is_left_out_on_another_rank_does_not_count(
    parts: list[tuple[float, float]], seconds: float
) -> None:
    assert slowest_seconds(parts) == pytest.approx(seconds)
