"""The benchmark of the protocol on recorded step times (benchmarks/protocol.py) replays the real protocol."""

from __future__ import annotations

import json

import pytest

from benchmarks import protocol
from benchmarks.record import RECORDED
from harness.core.measuring.precision import is_known

STEPS, PRECISION = 10, 0.05


def test_a_steady_run_ends_with_the_first_interval_that_there_can_be() -> None:
    # Stationary after 6 blocks of warm-up (WINDOW), and timed until the first look.
    run = protocol.replayed([1.0] * 40, STEPS, PRECISION)
    assert (len(run.timed), run.taken, run.precise) == (34, 16, True)
    assert run.seconds(run.taken, STEPS) == 160.0
    assert protocol.holds(run)


def test_a_run_that_is_too_noisy_takes_all_of_its_recording() -> None:
    run = protocol.replayed([1.0, 2.0] * 20, STEPS, PRECISION)
    assert (run.taken, run.precise) == (len(run.timed), False)


def test_a_recording_that_ends_in_the_warm_up_is_refused() -> None:
    with pytest.raises(ValueError, match="ends in the warm-up"):
        protocol.replayed([1.0] * 3, STEPS, PRECISION)


def test_the_fixed_number_is_the_smallest_with_which_the_share_of_runs_is_as_precise() -> None:
    steady = protocol.replayed([1.0] * 40, STEPS, PRECISION)
    one_far = protocol.replayed([1.0] * 6 + [1.5] + [1.0] * 33, STEPS, PRECISION)
    assert protocol.fixed_blocks([steady, one_far], PRECISION, 0.5) == 16
    blocks = protocol.fixed_blocks([steady, one_far], PRECISION, 1.0)
    known = [is_known(one_far.timed[:n], PRECISION, last=True) for n in (16, blocks - 1, blocks)]
    assert known == [False, False, True]


def test_replays_report_whether_they_reached_the_precision() -> None:
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    for run in recorded["runs"]:
        replayed = protocol.replayed(run["seconds_per_step"], recorded["block_steps"], PRECISION)
        known = is_known(replayed.timed[: replayed.taken], PRECISION, last=False)
        assert known == replayed.precise, run
        assert replayed.precise or replayed.taken == len(replayed.timed), run
    held, *_ = protocol.of_precision(recorded, PRECISION)
    assert held.cells()[1] == "13 of 14 (92.9 %)"
