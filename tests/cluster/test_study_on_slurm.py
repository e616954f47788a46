"""The main use case on a real Slurm: arrays of different shapes, ranks on several nodes over gloo, and the report."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from processes import wait_for, workers
from project import Cli
from slurm_study import SHORT, started
from studies import hosts, printed_until, read_json, run_dirs, run_of, starts, steps_done

from harness.core import events

pytestmark = [pytest.mark.cluster, pytest.mark.torch, pytest.mark.timeout(1200)]


@pytest.fixture(autouse=True)
def _environment(torch_python: Path) -> None:
    """Every test here needs the PyTorch environment."""


def test_a_sweep_becomes_arrays_of_different_shapes_and_a_report(cli: Cli, slurm: Any, tmp_path: Path) -> None:
    asked = ("-m", "gpus=1,2,4", "seed=0,1", *SHORT, "cluster.gpus_per_node=2")
    done = cli("harness", *asked, env=slurm.env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "through Slurm" in done.stdout
    assert "plan: 6 runs in 3 arrays" in done.stdout
    assert "6 completed, 0 failed" in done.stdout

    # According to Slurm's accounting: three arrays of two elements, each with its own nodes and GPUs.
    jobs = [line.split()[2].rstrip(":") for line in done.stdout.splitlines() if line.startswith("submitted job")]
    assert len(jobs) == 3
    listed = slurm.run("sacct", "-X", "-n", "-P", "-j", ",".join(jobs), "--format=JobID,NNodes,AllocTRES").stdout
    shapes: dict[str, list[str]] = {}
    for line in listed.splitlines():
        job, nodes, tres = line.split("|")
        gpus = next(item.split("=")[1] for item in tres.split(",") if item.startswith("gres/gpu="))
        shapes.setdefault(job.split("_")[0], []).append(f"{nodes} nodes {gpus} GPUs")
    assert [shapes[job] for job in jobs] == [
        ["1 nodes 1 GPUs"] * 2, ["1 nodes 2 GPUs"] * 2, ["2 nodes 4 GPUs"] * 2,
    ]  # fmt: skip

    four = starts(run_of(tmp_path, 4))
    assert [start["world_size"] for start in four] == [4] * 4
    assert len({start["host"] for start in four}) == 2, "the ranks are on two nodes"
    assert [start["local_rank"] for start in four] == [0, 1, 0, 1]
    result = read_json(run_of(tmp_path, 1) / "result.json")
    assert "virtual node" in result["oversubscribed"], "a run on virtual nodes is never a scaling result"
    assert result["job_id"].startswith(jobs[0])

    report = cli("analysis", "results/scaling")
    assert report.returncode == 0, report.stderr
    assert "oversubscribed" in report.stdout
    for name in (
        "report.html",
        "scaling.csv",
        "figures/speedup.svg",
        "figures/speedup.png",
        "figures/efficiency.svg",
        "figures/efficiency.png",
    ):
        assert (tmp_path / "results" / "scaling" / name).stat().st_size > 0

    again = cli("harness", *asked, env=slurm.env)
    assert again.returncode == 0
    assert "6 runs are completed already" in again.stdout
    assert "submitted job" not in again.stdout


def test_the_plain_command_is_accepted_and_never_falls_back_to_the_cpu(cli: Cli, slurm: Any, tmp_path: Path) -> None:
    done = cli("harness", "-m", "gpus=1,6", "dataset=synthetic", env=slurm.env)
    assert done.stdout.count("submitted job") == 2, done.stdout + done.stderr
    # The declared GPUs do not exist.
    assert done.returncode == 1
    assert len(run_dirs(tmp_path)) == 2
    for run_dir in run_dirs(tmp_path):
        result = read_json(run_dir / "result.json")
        assert result["status"] == "failed"
        assert "sees no GPU here" in "".join(result["stderr_tail"])


def test_slurms_refusal_is_passed_on_and_nothing_is_left_behind(cli: Cli, slurm: Any, tmp_path: Path) -> None:
    done = cli("harness", "-m", "gpus=1", *SHORT, "cluster.partition=nowhere", env=slurm.env)
    assert done.returncode == 2
    assert "invalid partition" in done.stderr.lower()
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("results/*/runs/*/result.json"))
    # After the correction, the study continues in the same folder.
    right = cli("harness", "-m", "gpus=1", *SHORT, "cluster.partition=high", env=slurm.env)
    assert right.returncode == 0, right.stdout + right.stderr


@pytest.mark.quiet
def test_a_killed_rank_on_another_node_ends_the_run_and_the_sweep_goes_on(slurm: Any, tmp_path: Path) -> None:
    slow = ("measure.steps=100", "measure.block_steps=1", "framework.options.compute_ms=100")
    arguments = ("-m", "gpus=6,1", *SHORT, *slow)
    with started(slurm, tmp_path, *arguments) as process:
        wait_for(lambda: steps_done(tmp_path, gpus=6, rank=4) > 2, 240)
        run_dir = run_of(tmp_path, 6)
        assert hosts(run_dir)[4] != hosts(run_dir)[0]
        os.kill(workers(tmp_path, gpus=6)[4], signal.SIGKILL)
        killed = time.monotonic()
        wait_for(lambda: (run_dir / "result.json").exists(), 30)
        assert time.monotonic() - killed < 20
        result = read_json(run_dir / "result.json")
        assert result["status"] == "failed"
        assert result["reason"] == "rank 4 was ended by signal 9 (SIGKILL)"
        wait_for(lambda: not workers(tmp_path, gpus=6), 10)
        output, _ = process.communicate(timeout=600)
    assert process.returncode == 1
    assert "1 completed, 1 failed" in output


def test_ctrl_c_leaves_the_jobs_and_the_same_command_finds_them_again(cli: Cli, slurm: Any, tmp_path: Path) -> None:
    arguments = ("-m", "gpus=1", "seed=0,1", *SHORT, "measure.steps=60")
    with started(slurm, tmp_path, *arguments) as process:
        printed_until(process, "submitted job")
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=120)
        assert process.returncode == 130
        assert "the jobs keep running in Slurm" in rest
        assert "Traceback" not in rest
        again = cli("harness", *arguments, env=slurm.env)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "submitted job" not in again.stdout, "a run that is in the queue is not submitted twice"
    for run_dir in run_dirs(tmp_path):
        assert [p.name for p in events.attempt_dirs(run_dir)] == ["attempt-1"]


def test_a_cancelled_job_is_marked_failed_with_slurms_word(slurm: Any, tmp_path: Path) -> None:
    with started(slurm, tmp_path, "-m", "gpus=1", *SHORT, "measure.steps=100000") as process:
        submitted = printed_until(process, "submitted job").splitlines()[-1]
        slurm.run("scancel", submitted.split()[2].rstrip(":"))
        output, _ = process.communicate(timeout=600)
    assert process.returncode == 1, output
    (run_dir,) = run_dirs(tmp_path)
    result = read_json(run_dir / "result.json")
    assert (result["status"], result["written_by"]) == ("failed", "launcher")
    assert "left the queue without a result" in result["reason"]
    assert "CANCELLED" in result["reason"]
