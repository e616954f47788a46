"""Parameter servers as a user meets them: on this machine, through the whole program, with failures on purpose."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import jsonschema
import pytest
from processes import wait_for
from project import PROJECT, Cli
from studies import SMALL, logged, losses, read_json, run_dirs, starts

pytestmark = pytest.mark.torch

SHORT = ("gpus=2", "cluster=local", *SMALL, "measure.block_steps=1")


@pytest.fixture(autouse=True)
def _environment(torch_python: Path) -> None:
    """Every test here needs the PyTorch environment."""


def servers() -> list[int]:
    """Process ids of the parameter servers on this machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            argv = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"harness.worker.servers" in argv:
            found.append(int(path.parent.name))
    return found


def test_a_synchronous_run_whose_rank_was_killed_is_that_of_one_that_never_failed(cli: Cli, tmp_path: Path) -> None:
    """Bit for bit: weights, momenta and counters of the servers come back from the checkpoint."""
    before = set(servers())
    arguments = ("strategy=ps_sync", *SHORT, "checkpoint.interval_steps=2")
    fault = ("fault=kill_rank", "fault.step=5", "fault.rank=0", "checkpoint.max_restarts=1")
    done = cli("harness", *arguments, *fault)
    assert done.returncode == 0, done.stdout + done.stderr
    (killed,) = run_dirs(tmp_path)
    assert logged(killed, "resume", 2)[0]["step"] == 4
    # Eight steps of both ranks, each once.
    assert logged(killed, "staleness", 2)[0]["samples"] == 8 * 2 * 4
    wait_for(lambda: not set(servers()) - before, 10)
    report = cli("analysis", "results/scaling")
    assert report.returncode == 0
    assert "1 runs: 1 completed" in report.stdout

    (tmp_path / "whole").mkdir()
    whole = cli("harness", *arguments, f"results={tmp_path}/whole/results")
    assert whole.returncode == 0, whole.stdout + whole.stderr
    (never,) = run_dirs(tmp_path / "whole")
    assert losses(killed) == losses(never)
    (last, first) = (logged(killed, "end", 2)[0], logged(never, "end", 1)[0])
    assert last["weights_checksum"] == first["weights_checksum"]
    assert logged(killed, "eval", 2)[0]["loss"] == logged(never, "eval", 1)[0]["loss"]


def test_a_slow_rank_holds_up_bounded_staleness_and_the_report_says_how_late_updates_were(
    cli: Cli, tmp_path: Path
) -> None:
    done = cli(
        *(
            "harness",
            "strategy=ssp",
            "strategy.options.staleness=1",
            *SHORT,
            "measure.steps=12",
            "measure.block_steps=6",
        ),
        *("fault=slow_rank", "fault.rank=1", "fault.seconds=0.3"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (run_dir,) = run_dirs(tmp_path)
    assert starts(run_dir)[0]["communication"] == "parameter servers: 1 on 1 node, staleness at most 1"
    [event] = logged(run_dir, "staleness")
    jsonschema.validate(event, json.loads((PROJECT / "harness" / "schemas" / "events.schema.json").read_text()))
    assert event["lead"] == 1
    assert (event["updates"], event["samples"]) == (2 * 14, 2 * 14 * 4)
    assert not logged(run_dir, "staleness", rank=1)
    assert read_json(run_dir / "result.json")["status"] == "completed"

    report = cli("analysis", "results/scaling")
    assert report.returncode == 0, report.stderr
    with open(next((tmp_path / "results" / "scaling").rglob("scaling.csv")), encoding="utf-8") as file:
        [point] = csv.DictReader(file)
    assert point["status"] == "completed"
    assert float(point["staleness_mean"]) == pytest.approx(event["mean"])
    assert int(point["staleness_max"]) == event["max"]
