"""The benchmark of the protocol on recorded step times (benchmarks/protocol.py) replays the real protocol."""

from __future__ import annotations

import json

import pytest

from benchmarks import protocol
from benchmarks.record import RECORDED
from harness.core.measuring.steady_state import relative_half_width

STEPS, PRECISION = 10, 0.05


def test_a_steady_run_ends_with_the_first_interval_that_there_can_be() -> None:
    # Stationary after 6 blocks of warm-up (WINDOW); an interval of the median needs at least 6 values.
    run = protocol.replayed([1.0] * 40, STEPS, PRECISION)
    assert (len(run.timed), run.taken, run.precise) == (34, 6, True)
    assert run.seconds(run.taken, STEPS) == 60.0
    assert protocol.holds(run)


def test_a_run_that_is_too_noisy_takes_all_of_its_recording() -> None:
    run = protocol.replayed([1.0, 2.0] * 20, STEPS, PRECISION)
    assert (run.taken, run.precise) == (len(run.timed), False)


def test_a_recording_that_ends_in_the_warm_up_is_refused() -> None:
    with pytest.raises(ValueError, match="ends in the warm-up"):
        protocol.replayed([1.0] * 3, STEPS, PRECISION)


def test_the_fixed_number_is_the_smallest_with_which_the_share_of_runs_is_as_precise() -> None:
    steady = protocol.replayed([1.0] * 40, STEPS, PRECISION)
    # With 8 values the interval is the full range, with 9 it is from the second to the second largest.
    one_far = protocol.replayed([1.0] * 6 + [1.5] + [1.0] * 33, STEPS, PRECISION)
    assert protocol.fixed_blocks([steady, one_far], PRECISION, 0.5) == 6
    assert protocol.fixed_blocks([steady, one_far], PRECISION, 1.0) == one_far.taken == 9


def test_replays_report_whether_they_reached_the_precision() -> None:
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    for run in recorded["runs"]:
        replayed = protocol.replayed(run["seconds_per_step"], recorded["block_steps"], PRECISION)
        half_width = relative_half_width(replayed.timed[: replayed.taken])
        assert (half_width is not None and half_width <= PRECISION) == replayed.precise, run
        assert replayed.precise or replayed.taken == len(replayed.timed), run
    assert protocol.rows()
