"""Predicting the largest number of ranks from smaller ones: emulated ranks on links of known speed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from emulated_runs import (
    Setting,
    Turn,
    Wrong,
    analysed,
    assert_right,
    finished,
    is_disturbed,
    needs_priority_where_busy,
    prepared,
    started,
    stretch,
    turns_of,
)
from project import Cli

from analysis.read.run import read_run_row
from harness.core.serialization import write_json

BOUND = 0.05  # as promised by docs/validation.md
LARGEST = 4
SERIES = {
    "exposed communication": {"message_mb": 1.0, "bandwidth_mb": 150.0, "overlap": False},
    "partly hidden communication": {
        "compute_ms": 35.0, "backward_fraction": 0.8, "message_mb": 2.0, "bandwidth_mb": 80.0, "stall_ms": 3.0,
    },
    "high latency": {"compute_ms": 30.0, "latency_ms": 4.0, "backward_fraction": 0.6},
}  # fmt: skip


@pytest.mark.quiet
@pytest.mark.torch
@pytest.mark.timeout(500)
@pytest.mark.parametrize(
    "series",
    [
        pytest.param(["partly hidden communication"], id="selection"),
        pytest.param(list(SERIES), id="whole", marks=pytest.mark.whole),
    ],
)
def test_the_largest_size_is_predicted_from_the_smaller_ones(
    cli: Cli, torch_python: Path, tmp_path: Path, series: list[str]
) -> None:
    needs_priority_where_busy()
    factor = stretch(tmp_path / "carrier", LARGEST)
    assert_right(partial(predicted_wrongly, cli, factor), tmp_path, series, most_held_up=0)


def predicted_wrongly(cli: Cli, factor: float, folder: Path, names: Sequence[str]) -> dict[str, Wrong]:
    """Measure these series, and return the predictions that are off by more than BOUND."""
    # As in test_ground_truth.py: first 4 ranks, then 3 and 1, at last 2 of one series beside 2 of the next.
    processes: list[list[Turn]] = [[] for _ in range(LARGEST)]
    in_pairs: list[list[Turn]] = []
    runs: dict[str, list[Path]] = {}
    for name in names:
        settings = [Setting(ranks, steps=24, **SERIES[name]).stretched(factor) for ranks in range(1, LARGEST + 1)]
        runs[name] = prepared(folder / name / "runs", settings)
        one, two, three, four = (
            turns_of(run_dir, setting.ranks) for setting, run_dir in zip(settings, runs[name], strict=True)
        )
        for process, turns in zip(processes, zip(four, [*three, *one], strict=True), strict=True):
            process.extend(turns)
        in_pairs.append(two)
    for number, two in enumerate(in_pairs):
        for process, turn in zip(processes[2:] if number % 2 else processes[:2], two, strict=True):
            process.append(turn)
    with started(processes) as ranks:
        finished(ranks, 240)
    off = {}
    for name, run_dirs in runs.items():
        for run_dir in run_dirs:
            analysed(run_dir)
        were_disturbed = any(map(is_disturbed, run_dirs))
        largest = read_run_row(run_dirs[-1])
        measured = largest["samples"] / largest["seconds"]
        run_dirs[-1].rename(folder / name / "not-shown")
        write_json(folder / name / "study.json", {"v": 1, "study": name, "created": 0.0, "invocations": []})
        done = cli("analysis", "predict", str(folder / name), f"gpus={LARGEST}", "--json")
        assert done.returncode == 0, done.stderr
        [series] = json.loads(done.stdout)["series"]
        assert "emulated" in series["marks"]
        assert [size["gpus"] for size in series["measured"]] == [1, 2, 3]
        [found] = [size for size in series["predictions"] if size["gpus"] == LARGEST]
        predicted = found["samples_per_second"]["median"]
        if abs(predicted / measured - 1) > BOUND:
            off[name] = Wrong(f"{predicted:.1f} samples/s predicted, {measured:.1f} measured", were_disturbed)
    return off
