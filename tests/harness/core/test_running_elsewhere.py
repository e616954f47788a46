"""Attempts on another machine, whose clock may be wrong, as they look from here without Slurm."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from harness.core import events
from harness.core.events import EventWriter, is_running

HOUR = 3600.0


def put(attempt: Path, age: float) -> None:
    """Give all files times of this age."""
    then = time.time() - age
    for path in attempt.iterdir():
        os.utime(path, (then, then))


@pytest.fixture
def log(tmp_path: Path) -> EventWriter:
    log = EventWriter(tmp_path / "events.rank0.jsonl", 0)
    log.write("steps", step=0, n=1)
    return log


@pytest.mark.parametrize("age", [HOUR, -HOUR])
def test_one_that_writes_is_running_whatever_its_clock_says(tmp_path: Path, log: EventWriter, age: float) -> None:
    put(tmp_path, age)
    assert is_running(tmp_path) is None
    for step in (1, 2):
        log.write("steps", step=step, n=1)
        put(tmp_path, age)
        assert is_running(tmp_path) is True
        assert is_running(tmp_path) is True, "nor has it stopped because nothing was written for a moment"


@pytest.mark.parametrize("age", [HOUR, -HOUR])
@pytest.mark.parametrize("grew", [False, True])
def test_a_silent_one_is_not_running_once_this_clock_has_waited_for_it(
    tmp_path: Path, log: EventWriter, age: float, grew: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, age)
    assert is_running(tmp_path) is None
    if grew:
        log.write("steps", step=1, n=1)
        put(tmp_path, age)
        assert is_running(tmp_path) is True
    monkeypatch.setattr(events, "SILENT_SECONDS", 0.1)
    time.sleep(0.15)
    put(tmp_path, 0.0)  # an hour later on the wrong clock
    assert is_running(tmp_path) is False


def test_the_first_look_goes_by_times_of_this_minute_or_of_the_days_before(tmp_path: Path, log: EventWriter) -> None:
    found = {}
    for age in (0, 30, 90, HOUR, 25 * HOUR, -30, -HOUR):
        attempt = tmp_path / f"attempt{age}"
        attempt.mkdir()
        (attempt / "events.rank0.jsonl").write_bytes((tmp_path / "events.rank0.jsonl").read_bytes())
        put(attempt, age)
        found[age] = is_running(attempt)
    assert found == {0: True, 30: True, 90: None, HOUR: None, 25 * HOUR: False, -30: None, -HOUR: None}
