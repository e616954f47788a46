"""Arrays within site limits, submission without waiting, and many runs at once, on a real Slurm."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from processes import wait_for
from project import PROJECT, Cli
from slurm_study import LONG, SHORT, counting, in_queue, started
from studies import failures, hosts, logged, program, read_json, run_dirs, run_of, steps_done, study_dir

from harness.core import events
from harness.slurm.client import Client

pytestmark = [pytest.mark.cluster, pytest.mark.torch, pytest.mark.timeout(900)]
FAULT = ("fault=kill_rank", "fault.step=3", "checkpoint.interval_steps=2")


@pytest.fixture(autouse=True)
def _environment(torch_python: Path) -> None:
    """Every test here needs the PyTorch environment."""


def status(cli: Cli, env: dict[str, str]) -> dict[str, Any]:
    done = cli("harness.status", "results/scaling", "--json", env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def called(log: Path) -> Counter[str]:
    """Count the calls of each program; see `counting`."""
    return Counter(line.split()[0] for line in log.read_text().splitlines())


def running_on(folder: Path) -> set[str]:
    """Return the hosts on which a rank 0 has begun its run and not ended it."""
    runs = [run_dir for run_dir in run_dirs(folder) if not [*run_dir.glob("*/exit.rank*")]]
    return {start["host"] for run_dir in runs for start in logged(run_dir, "start")}


@pytest.mark.timeout(2700)
@pytest.mark.parametrize("runs", [18, pytest.param(200, marks=pytest.mark.whole)])
def test_many_runs_and_a_node_that_dies_in_the_middle(
    slurm: Any, tmp_path: Path, torch_python: Path, runs: int
) -> None:
    # Four seconds, so that a run that has begun on the node is still there when the node dies.
    quick = ("measure.warmup_steps=1", "measure.steps=200", "measure.block_steps=200", "measure.probe_steps=0")
    # Low priority, so that twelve ranks starting at once leave the cores to concurrent tests.
    python = program(tmp_path / "bin" / "python", f'#!/bin/sh\nexec nice -n 19 {torch_python} "$@"\n')
    arguments = ("-m", "gpus=1", f"seed=range({runs})", *SHORT, *quick, f"framework.environment={python}")
    with started(slurm, tmp_path, *arguments) as process:
        wait_for(lambda: len(list(study_dir(tmp_path).glob("runs/*/result.json"))) >= runs // 3, 900)
        wait_for(lambda: "n2" in running_on(tmp_path), 60)
        slurm.node_fail("n2")
        slurm.node_back("n2")
        output, _ = process.communicate(timeout=1500)
    assert process.returncode == 0, f"{failures(tmp_path)}\n{output[-3000:]}"
    assert f"{runs} completed, 0 failed" in output
    finished = Counter()
    hit = 0
    for run_dir in run_dirs(tmp_path):
        assert read_json(run_dir / "result.json")["status"] == "completed"
        attempts = events.attempt_dirs(run_dir)
        hit += len(attempts) > 1
        for attempt in attempts:
            exits = [read_json(path) for path in attempt.glob("exit.rank*.json")]
            finished[run_dir.name] += any(e["code"] == 0 for e in exits)
    assert len(finished) == runs
    assert set(finished.values()) == {1}, "nothing is run twice"
    assert hit >= 1, "the node that died was running something"
    assert os.listdir(study_dir(tmp_path) / "submissions") != []


def test_submit_and_leave_look_and_cancel(slurm: Any, cli: Cli, tmp_path: Path) -> None:
    other = slurm.run("sbatch", "--parsable", "--wrap=sleep 3000", "--output=/dev/null", check=True).stdout.strip()
    done = cli("harness", "-m", "gpus=1,2", "seed=0,1", *LONG, "wait=false", env=slurm.env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "harness.status results/scaling" in done.stdout
    wait_for(lambda: any(run["samples_per_second"] for run in status(cli, slurm.env)["runs"]), 240)
    now = status(cli, slurm.env)
    states = Counter(run["state"] for run in now["runs"])
    assert states["running"] >= 1
    assert states["running"] + states["pending"] == 4
    going = next(run for run in now["runs"] if run["samples_per_second"])
    assert going["eta_seconds"] > 0
    assert 0 < going["steps_done"] < going["steps"] == 402
    assert 0 < now["used_node_hours"] < now["planned_node_hours"]
    shown = cli("harness.status", "results/scaling", env=slurm.env)
    assert "running" in shown.stdout
    assert "samples/s" in shown.stdout

    cancelled = cli("harness.cancel", "results/scaling", env=slurm.env)
    assert cancelled.returncode == 0, cancelled.stderr
    assert "cancelled 4 jobs" in cancelled.stdout
    wait_for(lambda: [line for line in in_queue(slurm) if "COMPLETING" not in line] == [f"{other} RUNNING"], 240)
    wait_for(lambda: {run["state"] for run in status(cli, slurm.env)["runs"]} == {"stopped"}, 240)
    assert "CANCELLED" in status(cli, slurm.env)["runs"][0]["note"]
    nothing = cli("harness.cancel", "results/scaling", env=slurm.env)
    assert "no job of study scaling is in the queue" in nothing.stdout
    assert not list(tmp_path.glob("results/*/runs/*/result.json")), "cancelled runs are not finished, nor failed"

    # Half of the study resumes; saved steps are not repeated.
    more = cli("harness", "-m", "gpus=1", "seed=0,1", *LONG, "wait=false", env=slurm.env)
    assert "plan: 2 runs in 1 array" in more.stdout


def test_a_status_call_asks_the_accounting_at_most_once(slurm: Any, cli: Cli, tmp_path: Path) -> None:
    slurm.run("scontrol", "update", "partition=main", "state=down", check=True)
    try:
        done = cli("harness", "-m", "gpus=1,2", "seed=range(20)", *SHORT, "wait=false", env=slurm.env)
        assert done.returncode == 0, done.stdout + done.stderr
        slurm.run("scancel", "--me")
        wait_for(lambda: not in_queue(slurm), 120)
        env, log = counting(tmp_path, slurm.env, "squeue", "sacct")
        assert {run["state"] for run in status(cli, env)["runs"]} == {"stopped"}
        assert called(log) == {"squeue": 1, "sacct": 1}
        # Forty jobs are lost while it waits: one query for all, and one more for those it does not know yet.
        log.write_text("")
        again = ("-m", "gpus=1,2", "seed=range(20)", *SHORT)
        with started(_With(slurm, env), tmp_path, *again) as waiting:
            wait_for(lambda: len(in_queue(slurm)) == 40, 240)
            # All of them between two polls.
            waiting.send_signal(signal.SIGSTOP)
            slurm.run("scancel", "--me")
            wait_for(lambda: not in_queue(slurm), 120)
            waiting.send_signal(signal.SIGCONT)
            output, _ = waiting.communicate(timeout=600)
        assert waiting.returncode == 1, output
        assert "40 failed" in output
        assert 1 <= called(log)["sacct"] <= 2
    finally:
        slurm.run("scontrol", "update", "partition=main", "state=up", check=True)


class _With:
    """The cluster with another environment."""

    def __init__(self, slurm: Any, env: dict[str, str]) -> None:
        self.env, self.run = env, slurm.run


def test_a_limit_on_submitted_jobs_is_kept_and_everything_runs(another_slurm: Any, cli: Cli, tmp_path: Path) -> None:
    with another_slurm(
        nodes=1, gpus_per_node=4, extra_conf="AccountingStorageEnforce=associations,limits,qos"
    ) as slurm:
        slurm.run("sacctmgr", "-i", "add", "account", "project", check=True)
        slurm.run("sacctmgr", "-i", "add", "user", "root", "account=project", "defaultaccount=project")
        slurm.run("sacctmgr", "-i", "modify", "qos", "normal", "set", "MaxSubmitJobsPerUser=2", check=True)
        arguments = ("-m", "gpus=1", "seed=range(3)", *SHORT)
        refused = cli("harness", *arguments, env=slurm.env)
        assert refused.returncode == 2, refused.stdout
        assert "MaxSubmit" in refused.stderr
        assert "cluster.max_submit" in refused.stderr
        assert not list(tmp_path.glob("results/*/runs/*/attempt-*")), "nothing of it was begun"
        done = cli("harness", *arguments, "cluster.max_submit=2", env=slurm.env)
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count("submitted job") >= 2
        assert "3 completed, 0 failed" in done.stdout


def test_packed_sizes_share_one_job_and_its_nodes(slurm: Any, cli: Cli, tmp_path: Path) -> None:
    asked = ("-m", "gpus=1,2", "cluster.gpus_per_node=1", "seed=0,1", *SHORT, "pack=true")
    done = cli("harness", *asked, env=slurm.env, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "plan: 4 runs in 1 array" in done.stdout
    jobs = Counter(read_json(d / "result.json")["job_id"] for d in run_dirs(tmp_path))
    assert sorted(jobs.values()) == [2, 2], "one element of the array per seed"
    for run_dir in run_dirs(tmp_path):
        spec = read_json(run_dir / "spec.json")["spec"]
        assert logged(run_dir, "start")[0]["world_size"] == spec["gpus"]
        assert len(set(hosts(run_dir))) == spec["placement"]["nodes"]
        largest = next(
            d
            for d in run_dirs(tmp_path)
            if read_json(d / "spec.json")["spec"]["gpus"] == 2
            and read_json(d / "result.json")["job_id"] == read_json(run_dir / "result.json")["job_id"]
        )
        assert set(hosts(run_dir)) <= set(hosts(largest))


def test_a_failed_run_in_a_packed_job_does_not_stop_the_others(slurm: Any, cli: Cli, tmp_path: Path) -> None:
    done = cli("harness", "-m", "gpus=1,2", *SHORT, *FAULT, "checkpoint.max_restarts=1", "pack=true", env=slurm.env)
    assert done.returncode == 0, done.stdout + done.stderr
    for gpus in (1, 2):
        assert [d.name for d in events.attempt_dirs(run_of(tmp_path, gpus))] == ["attempt-1", "attempt-2"]


@pytest.mark.whole  # in CI, runs of jobs of their own
def test_runs_of_a_packed_job_fail_when_no_restarts_are_left(slurm: Any, cli: Cli, tmp_path: Path) -> None:
    failing = cli("harness", "-m", "gpus=1,2", *SHORT, *FAULT, "pack=true", env=slurm.env)
    assert failing.returncode == 1
    assert "0 completed, 2 failed" in failing.stdout


@pytest.mark.whole  # in CI, one that is not packed
def test_a_packed_job_that_is_preempted_goes_on_where_it_was(slurm: Any, tmp_path: Path) -> None:
    with started(slurm, tmp_path, "-m", "gpus=1,2", *LONG, "measure.steps=60", "pack=true") as process:
        wait_for(lambda: steps_done(tmp_path, 1) + steps_done(tmp_path, 2) >= 68, 240)
        slurm.run("scancel", "--signal=USR2", "--me")  # as at the wall limit
        output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    attempts = sorted(len(events.attempt_dirs(run_of(tmp_path, gpus))) for gpus in (1, 2))
    assert attempts == [1, 2], "the run that was done is not run again"


def test_headless_the_whole_plan_inside_one_allocation(slurm: Any, cli: Cli, tmp_path: Path) -> None:
    script = PROJECT / "sbatch" / "headless.sh"
    log = tmp_path / "headless.log"
    submitted = slurm.run(
        "sbatch", "--parsable", "--wait", "--nodes=2", "--ntasks-per-node=4", "--gres=gpu:4", "--time=10",
        f"--output={log}", script, "-m", "gpus=1,6", *SHORT, "cluster=slurm", f"results={tmp_path}/results",
        cwd=PROJECT, timeout=500, check=False,
    )  # fmt: skip
    assert submitted.returncode == 0, log.read_text()
    assert "2 completed, 0 failed" in log.read_text()
    assert {read_json(d / "result.json")["job_id"] for d in run_dirs(tmp_path)} == {submitted.stdout.strip()}
    assert len(set(hosts(run_of(tmp_path, 6)))) == 2
    # On the login node, the same command makes the same plan and finds everything done.
    again = cli("harness", "-m", "gpus=1,6", *SHORT, env=slurm.env)
    assert "2 runs are completed already" in again.stdout


def test_headless_refuses_what_does_not_fit_its_allocation(slurm: Any, cli: Cli, tmp_path: Path) -> None:
    outside = cli("harness", "gpus=1", *SHORT, "cluster.scheduler=allocation", env=slurm.env)
    assert outside.returncode == 2
    assert "needs an allocation" in outside.stderr
    log = tmp_path / "headless.log"
    slurm.run(
        "sbatch", "--wait", "--nodes=1", "--ntasks-per-node=2", "--time=5", f"--output={log}",
        PROJECT / "sbatch" / "headless.sh", "-m", "gpus=2,4", *SHORT, "cluster=slurm", f"results={tmp_path}/results",
        cwd=PROJECT, timeout=500,
    )  # fmt: skip
    assert "this allocation has 1 x 2" in log.read_text()


def test_task_with_its_arrays_number_is_distinguished_from_others(slurm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for the task that has the array's own number, scontrol prints the other tasks too."""
    monkeypatch.setenv("SLURM_CONF", slurm.env["SLURM_CONF"])
    script = ("--output=/dev/null", "--wrap=sleep 300")
    array = slurm.run("sbatch", "--parsable", "--array=0-1%1", *script, check=True).stdout.strip()
    client = Client()

    def states() -> dict[str, str]:
        return {fields["JobId"]: fields["JobState"] for fields in client.show("job", array)}

    try:
        wait_for(lambda: sorted(states().values()) == ["PENDING", "RUNNING"], 60)
        told = {number: client.job(number) for number in states()}
        assert {number: job.state for number, job in told.items() if job} == states()
    finally:
        slurm.run("scancel", array)
