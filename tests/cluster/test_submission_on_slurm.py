"""Slow answers of a real sbatch, and commands killed while they submit: no run is lost, and none runs twice."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import full_disks
import pytest
from processes import wait_for
from project import PROJECT, Cli
from slurm_study import SHORT, in_queue
from studies import failures, program, read_json, run_dirs

from harness.core import events

pytestmark = [pytest.mark.cluster, pytest.mark.torch, pytest.mark.timeout(1200)]

TRIVIAL = ("measure.steps=1", "measure.block_steps=1", "measure.warmup_steps=1")
KILLED_AT = Path(__file__).parent / "killed_at.py"


@pytest.fixture
def arguments(torch_python: Path) -> tuple[str, ...]:
    environment = f"framework.environment={torch_python}"
    return ("-m", "gpus=1,2", "seed=0,1", *SHORT, *TRIVIAL, environment)


def with_sbatch(slurm: Any, folder: Path, afterwards: str) -> dict[str, str]:
    """Return an environment whose sbatch submits and then runs the shell line `afterwards` before it answers."""
    text = f'#!/bin/sh\nanswer=$({shutil.which("sbatch")} "$@") || exit\n[ "$1" = --test-only ] || {afterwards}\n'
    program(folder / "sbatch", f"{text}echo $answer\n")
    return {**slurm.env, "PATH": f"{folder}:{slurm.env['PATH']}"}


@contextmanager
def no_job_starts(slurm: Any) -> Iterator[None]:
    slurm.run("scontrol", "update", "partition=main", "state=down", check=True)
    try:
        yield
    finally:
        slurm.run("scontrol", "update", "partition=main", "state=up", check=True)


def assert_each_run_completed_once(folder: Path, study: str = "scaling") -> None:
    for run_dir in run_dirs(folder, study):
        assert read_json(run_dir / "result.json")["status"] == "completed"
        # Attempts that were planned but never submitted have not begun.
        begun = [d for d in events.attempt_dirs(run_dir) if (d / "begin.json").exists()]
        assert len(begun) == 1


def test_a_job_may_start_before_sbatch_answers_or_the_command_is_killed(
    slurm: Any, cli: Cli, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    # The nodes are idle: jobs start at once.
    done = cli("harness", *arguments, env=with_sbatch(slurm, tmp_path / "slow", "sleep 3"))
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert_each_run_completed_once(tmp_path)
    shutil.rmtree(tmp_path / "results")
    expanded = cli("harness", *arguments, "results=r%j-%u", env=slurm.env)
    assert expanded.returncode == 2
    assert "Slurm would expand the % in r%j-%u/scaling" in expanded.stderr

    with no_job_starts(slurm):
        killing = with_sbatch(slurm, tmp_path / "killing", "kill -KILL $PPID")
        assert cli("harness", *arguments, env=killing).returncode == -9
        assert len(in_queue(slurm)) == 2, "one of two arrays is submitted, without its number being recorded"
        status = cli("harness.status", "results/scaling", "--json", env=slurm.env)
        assert status.stdout.count('"pending"') == 2, "as orphaned jobs are found by the token in their name"
    wait_for(lambda: list(tmp_path.glob("results/scaling/submitit/*/*_0_log.out")))
    again = cli("harness", *arguments, env=slurm.env)
    assert again.returncode == 0, failures(tmp_path) + again.stdout + again.stderr
    assert "takes it over" in again.stdout
    assert again.stdout.count("submitted job") == 1
    assert_each_run_completed_once(tmp_path)


def test_a_run_that_ends_while_squeue_is_slow_to_answer_is_not_run_again(
    slurm: Any, cli: Cli, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    asked = (*arguments, "gpus=1", "seed=0", "framework.options.compute_ms=2000", "measure.steps=8")
    first = cli("harness", *asked, "wait=false", env=slurm.env)
    assert first.returncode == 0, first.stdout + first.stderr
    # Answers once the run has ended and its job has left the queue.
    result = f"{tmp_path}/results/scaling/runs/*/result.json"
    wait = f'until ls {result} > /dev/null 2>&1; do sleep 0.2; done\nwhile [ -n "$({shutil.which("squeue")} -h)" ]'
    text = f'#!/bin/sh\n{wait}; do sleep 0.2; done\nexec {shutil.which("squeue")} "$@"\n'
    program(tmp_path / "late" / "squeue", text)
    assert not list(tmp_path.glob("results/scaling/runs/*/result.json")), "the run has not ended yet"
    again = cli("harness", *asked, env={**slurm.env, "PATH": f"{tmp_path}/late:{slurm.env['PATH']}"})
    assert again.returncode == 0, again.stdout + again.stderr
    assert "submitted job" not in again.stdout
    assert_each_run_completed_once(tmp_path)


def test_the_old_failure_of_a_run_that_is_held_back_is_not_reported_again(
    slurm: Any, cli: Cli, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    # A fault is made in a run's first attempt only.
    asked = (*arguments, "gpus=1", "seed=0,1,2", "measure.steps=4", "fault=kill_rank", "fault.step=2")
    first = cli("harness", *asked, env=slurm.env)
    assert first.returncode == 1, first.stdout + first.stderr
    assert "0 completed, 3 failed" in first.stdout
    second = cli("harness", *asked, "cluster.max_submit=1", env=slurm.env)
    assert second.returncode == 0, second.stdout + second.stderr
    assert "3 completed, 0 failed" in second.stdout


def test_a_job_to_be_taken_over_waits_until_the_full_disk_has_space_again(
    slurm: Any, cli: Cli, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    with full_disks.mounted(tmp_path / "disk", "4m", 10_000) as disk, no_job_starts(slurm):
        asked = (*arguments, "gpus=1", f"results={disk}/results", "wait=false")
        killing = with_sbatch(slurm, tmp_path / "killing", "kill -KILL $PPID")
        assert cli("harness", *asked, env=killing).returncode == -9
        full_disks.fill_bytes(disk, left=0)
        refused = cli("harness", *asked, env=slurm.env)
        assert refused.returncode == 2, refused.stdout + refused.stderr
        assert refused.stderr.startswith("error: ")
        assert "cannot be written: No space left on device" in refused.stderr
        full_disks.free(disk)
        again = cli("harness", *asked, env=slurm.env)
        assert again.returncode == 0, again.stdout + again.stderr
        assert "takes it over" in again.stdout
        assert "submitted job" not in again.stdout
        slurm.run("scancel", "--me")  # the nodes do not see the disk


@pytest.mark.whole
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("nodes", ["idle", "busy"])
@pytest.mark.parametrize("more", [(), ("pack=true",)], ids=["arrays", "packed"])
def test_a_command_killed_at_any_point_is_completed_by_the_next(
    slurm: Any, cli: Cli, tmp_path: Path, arguments: tuple[str, ...], more: tuple[str, ...], nodes: str
) -> None:
    """Killed at its first write, its second, and so on until it has ended by itself; then the same command again.

    On busy nodes, the command is also run again while all jobs wait.
    """
    seen, jobs = Counter[str](), set[int]()
    for number in range(1, 200):
        # Two shapes of jobs, of one rank each, which start faster than two.
        asked, said = (*arguments, "gpus=1", "cluster.cpus_per_gpu=1,2", *more, f"study=s{number}"), ""
        with no_job_starts(slurm) if nodes == "busy" else nullcontext():
            killed = subprocess.run(
                [sys.executable, KILLED_AT, str(number), *asked, "wait=false"],
                cwd=tmp_path, env={**slurm.env, "PYTHONPATH": str(PROJECT)}, capture_output=True, text=True,
                timeout=120,
            )  # fmt: skip
            assert killed.returncode in (0, -9), killed.stdout + killed.stderr
            if nodes == "busy":
                waiting = cli("harness", *asked, "wait=false", env=slurm.env)
                assert waiting.returncode == 0, f"{number}: {waiting.stdout}{waiting.stderr}"
                said = waiting.stdout
                jobs.add(len(in_queue(slurm)))
        again = cli("harness", *asked, env=slurm.env)
        assert again.returncode == 0, f"{number}: {failures(tmp_path)}{again.stdout}{again.stderr}"
        ended = re.search(r"^(\d+) completed, 0 failed, (\d+) were completed before$", again.stdout, re.MULTILINE)
        completed = ended and int(ended[1]) + int(ended[2]) == 4
        assert completed or "4 runs are completed already" in again.stdout, again.stdout
        assert_each_run_completed_once(tmp_path, f"s{number}")
        if killed.returncode == 0:
            break
        said += again.stdout
        seen["taken over"] += "takes it over" in said
        seen["nothing submitted"] += "submitted job" not in said
    assert number > 30
    assert min(seen["taken over"], seen["nothing submitted"]) >= 1, seen
    assert nodes == "idle" or len(jobs) == 1, "as many jobs wait, wherever the first command was killed"
