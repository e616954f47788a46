"""A short soak, and its replay."""

from __future__ import annotations

from pathlib import Path

import pytest
from project import Cli
from studies import read_json

from benchmarks.soak.schedule import KINDS


@pytest.mark.whole
@pytest.mark.torch
@pytest.mark.timeout(3000)
def test_a_short_soak_loses_nothing_and_its_schedule_is_replayed(
    able_to_run_slurm: None, torch_python: Path, cli: Cli, tmp_path: Path
) -> None:
    asked = ("--minutes", "1", "--runs", "12", "--pairs", "2")
    done = cli("benchmarks", "soak", *asked, "--seed", "3", "--out", "first", timeout=1400)
    assert done.returncode == 0, done.stdout + done.stderr
    report = read_json(tmp_path / "first" / "report.json")
    assert report["findings"] == []
    assert report["completed"] == report["runs"] >= 14
    assert report["faults"].keys() <= {kind for kinds in KINDS.values() for kind in kinds}
    assert sum(each["made"] for each in report["faults"].values()) >= 3
    again = cli("benchmarks", "soak", *asked, "--replay", "first/schedule.json", "--out", "second", timeout=1400)
    assert again.returncode == 0, again.stdout + again.stderr
    first, second = (read_json(tmp_path / name / "schedule.json") for name in ("first", "second"))
    assert first == second
