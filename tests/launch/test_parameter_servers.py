"""Parameter servers through the whole program on this machine, with injected failures."""

from __future__ import annotations

import csv
import json
import os
import signal
import time
from pathlib import Path

import jsonschema
import pytest
from processes import servers, wait_for, workers
from project import PROJECT, Cli
from strangers import attacking
from studies import UNPROBED, logged, losses, read_json, run_dirs, started, starts, steps_done

pytestmark = pytest.mark.torch

SHORT = ("gpus=2", "cluster=local", *UNPROBED, "measure.block_steps=1")


@pytest.fixture(autouse=True)
def _environment(torch_python: Path) -> None:
    """Every test here needs the PyTorch environment."""


@pytest.mark.whole  # in CI, the ranks alone: tests/worker/servers
def test_killed_synchronous_run_equals_an_uninterrupted_one(cli: Cli, tmp_path: Path) -> None:
    """Bit-identical: the servers' weights, momenta and counters are restored from the checkpoint, and strangers do not
    disturb them."""
    arguments = ("strategy=ps_sync", *SHORT, "checkpoint.interval_steps=2")
    fault = ("fault=kill_rank", "fault.step=5", "fault.rank=0", "checkpoint.max_restarts=1")
    done = cli("harness", *arguments, *fault)
    assert done.returncode == 0, done.stdout + done.stderr
    (killed,) = run_dirs(tmp_path)
    assert logged(killed, "resume", 2)[0]["step"] == 4
    # Eight steps of both ranks, each once.
    assert logged(killed, "staleness", 2)[0]["samples"] == 8 * 2 * 4
    wait_for(lambda: not servers(tmp_path), 10)
    report = cli("analysis", "results/scaling", "--only", "csv")
    assert report.returncode == 0
    assert "1 runs: 1 completed" in report.stdout

    (tmp_path / "whole").mkdir()
    with attacking(lambda: servers(tmp_path)):
        whole = cli("harness", *arguments, f"results={tmp_path}/whole/results")
    assert whole.returncode == 0, whole.stdout + whole.stderr
    (never,) = run_dirs(tmp_path / "whole")
    said = (never / "attempt-1" / "stderr.rank0").read_text(encoding="utf-8")
    assert "connections that are not of this run were dropped" in said
    assert losses(killed) == losses(never)
    (last, first) = (logged(killed, "end", 2)[0], logged(never, "end", 1)[0])
    assert last["weights_checksum"] == first["weights_checksum"]
    assert logged(killed, "eval", 2)[0]["loss"] == logged(never, "eval", 1)[0]["loss"]


def test_an_asynchronous_run_goes_on_with_a_server_that_was_killed(cli: Cli, tmp_path: Path) -> None:
    slow = ("fault=slow_rank", "fault.rank=1", "fault.seconds=0.5", "measure.steps=12")
    with started(tmp_path, "strategy=ps_async", *SHORT, *slow) as harness:
        wait_for(lambda: steps_done(tmp_path, gpus=2, rank=1) >= 3, 240)
        [server] = servers(tmp_path, of_rank=workers(tmp_path, 2)[0])
        os.kill(server, signal.SIGKILL)
        said, _ = harness.communicate(timeout=300)
        assert harness.returncode == 0, said
    (run_dir,) = run_dirs(tmp_path)
    assert read_json(run_dir / "result.json")["status"] == "completed"
    [back] = logged(run_dir, "server_back") + logged(run_dir, "server_back", rank=1)
    assert back["server"] == 0
    [event] = logged(run_dir, "staleness")
    assert (event["samples"], event["returns"]) == (2 * 14 * 4, 1)
    assert event["lost_samples"] == back["lost_samples"]
    assert "a parameter server ended too early, with exit code -9: it is started again" in (
        run_dir / "attempt-1" / "stderr.rank0"
    ).read_text(encoding="utf-8")
    report = cli("analysis", "results/scaling", "--only", "html")
    assert report.returncode == 0, report.stderr
    html = next((tmp_path / "results" / "scaling").rglob("report.html")).read_text(encoding="utf-8")
    assert "parameter server 0 ended in the block from step" in html
    assert "1 runs: 1 completed" in report.stdout


@pytest.mark.quiet
def test_killed_dedicated_server_restarts_a_synchronous_run(cli: Cli, tmp_path: Path) -> None:
    """Locally, where the servers are separate processes on the only node."""
    own = ("strategy=ps_sync", "strategy.options.placement=own_nodes", "strategy.options.servers=2")
    slow = ("fault=slow_rank", "fault.rank=1", "fault.seconds=0.5", "measure.steps=12")
    again = ("checkpoint.interval_steps=2", "checkpoint.max_restarts=1")
    with started(tmp_path, *own, *SHORT, *slow, *again) as harness:
        wait_for(lambda: steps_done(tmp_path, gpus=2, rank=1) >= 4, 240)
        os.kill(workers(tmp_path, 2)[3], signal.SIGKILL)  # after two ranks: the second server
        killed = time.time()
        said, _ = harness.communicate(timeout=300)
        assert harness.returncode == 0, said
    assert "2 servers in separate processes on this node" in said
    (run_dir,) = run_dirs(tmp_path)
    ended = read_json(run_dir / "attempt-1" / "again.json")
    assert ended["reason"] == "parameter server 1 was ended by signal 9 (SIGKILL)"
    assert ended["t"] - killed < 20  # 2 to 7 s on an idle machine
    [resumed] = logged(run_dir, "resume", 2)
    assert resumed["step"] >= 2
    said_of = "parameter servers: 2 in processes of their own, on the ranks' one node, synchronous"
    assert [start["communication"] for start in starts(run_dir, 2)] == [said_of] * 2
    assert logged(run_dir, "staleness", 2)[0]["samples"] == 2 * 14 * 4
    exit_ = read_json(run_dir / "attempt-2" / "exit.rank3.json")
    jsonschema.validate(exit_, read_json(PROJECT / "harness" / "schemas" / "exit.schema.json"))
    assert (exit_["code"], exit_["server"]) == (0, 1)


def test_slow_rank_delays_bounded_staleness_and_the_report_states_it(cli: Cli, tmp_path: Path) -> None:
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

    report = cli("analysis", "results/scaling", "--only", "csv")
    assert report.returncode == 0, report.stderr
    with open(next((tmp_path / "results" / "scaling").rglob("scaling.csv")), encoding="utf-8") as file:
        [point] = csv.DictReader(file)
    assert point["status"] == "completed"
    assert float(point["staleness_mean"]) == pytest.approx(event["mean"])
    assert int(point["staleness_max"]) == event["max"]
